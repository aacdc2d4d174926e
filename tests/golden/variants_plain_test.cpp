// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "golden/golden.hpp"

// The paper's variants without rotation and norms.

namespace gated_attention::test {
namespace {

/// A variant that has these stages and no number of its own.
template <class... Stages>
Entry plain(const std::string& name, const Stages&... stages) {
  return variant("variants_plain", name, [stages...]<class Scalar>(Scalar, const Numbers& n) {
    return compose<Scalar>(n.shape, stages...);
  });
}

const std::vector<Entry>& table() {
  static const std::vector<Entry> entries = {
      plain("no_gate", Causal{}),
      plain("sdpa_elementwise", Causal{}, Gate<at::Sdpa>{}),
      plain("value_elementwise", Causal{}, Gate<at::Value>{}),
      plain("key_elementwise", Causal{}, Gate<at::Key>{}),
      plain("query_elementwise", Causal{}, Gate<at::Query>{}),
      plain("output_elementwise", Causal{}, Gate<at::Output>{}),
      plain("sdpa_headwise", Causal{}, Gate<at::Sdpa, Headwise>{}),
      plain("value_headwise", Causal{}, Gate<at::Value, Headwise>{}),
      plain("key_headwise", Causal{}, Gate<at::Key, Headwise>{}),
      plain("query_headwise", Causal{}, Gate<at::Query, Headwise>{}),
      plain("sdpa_elementwise_shared_heads", Causal{}, Gate<at::Sdpa, SharedHeads>{}),
      plain("value_elementwise_shared_heads", Causal{}, Gate<at::Value, SharedHeads>{}),
      plain("sdpa_elementwise_head_mean", Causal{}, Gate<at::Sdpa, HeadMean>{}),
      plain("value_elementwise_head_mean", Causal{}, Gate<at::Value, HeadMean>{}),
      plain("sdpa_elementwise_add_silu", Causal{}, Gate<at::Sdpa, Add, Silu>{}),
      plain("sdpa_elementwise_silu", Causal{}, Gate<at::Sdpa, Silu>{}),
      plain("sdpa_elementwise_add_identity", Causal{}, Gate<at::Sdpa, Add, Identity>{}),
      plain("sdpa_elementwise_non_sparse_sigmoid", Causal{}, Gate<at::Sdpa, NonSparseSigmoid>{}),
      plain("sdpa_elementwise_tanh", Causal{}, Gate<at::Sdpa, Tanh>{}),
      plain("sdpa_elementwise_softplus", Causal{}, Gate<at::Sdpa, Softplus>{}),
      plain("sdpa_elementwise_twice_sigmoid", Causal{}, Gate<at::Sdpa, TwiceSigmoid>{}),
      plain("sdpa_headwise_twice_sigmoid_bias", Causal{},
            Gate<at::Sdpa, Headwise, TwiceSigmoid, Bias>{}),
      plain("sdpa_elementwise_constant", Causal{}, Gate<at::Sdpa, Constant>{}),
      plain("sdpa_elementwise_bias", Causal{}, Gate<at::Sdpa, Bias>{}),
      plain("activate_sdpa_silu", Causal{}, Activate<at::Sdpa, Silu>{}),
      plain("sdpa_value_query_elementwise", Causal{}, Gate<at::Query>{}, Gate<at::Value>{},
            Gate<at::Sdpa>{}),
      plain("sdpa_elementwise_value_dim", Causal{}, Gate<at::Sdpa>{}),
      variant("variants_plain", "normalize_sdpa",
              []<class Scalar>(Scalar, const Numbers& n) {
                return compose<Scalar>(n.shape, Causal{}, Normalize<at::Sdpa>{.eps = n.eps});
              }),
      variant("variants_plain", "sdpa_elementwise_sliding_window",
              []<class Scalar>(Scalar, const Numbers& n) {
                return compose<Scalar>(n.shape, SlidingWindow{.window = n.window},
                                       Gate<at::Sdpa>{});
              }),
      plain("sdpa_elementwise_learned_sink", Causal{}, LearnedSink{}, Gate<at::Sdpa>{}),
      plain("cross_sdpa_elementwise", Bidirectional{}, Gate<at::Sdpa>{}),
      variant("variants_plain", "sdpa_elementwise_softcap",
              []<class Scalar>(Scalar, const Numbers& n) {
                return compose<Scalar>(n.shape, Causal{}, Softcap{.cap = n.softcap},
                                       Gate<at::Sdpa>{});
              }),
  };
  return entries;
}

INSTANTIATE_TEST_SUITE_P(VariantsPlain, RecordedLayer, testing::ValuesIn(table()), entry_name);
INSTANTIATE_TEST_SUITE_P(VariantsPlain, RecordedCausalLayer, testing::ValuesIn(extendable(table())),
                         entry_name);

TEST(VariantsPlain, EveryVariantIsTestedOrNamed) {
  expect_variants("variants_plain", table(), {});
}

}  // namespace
}  // namespace gated_attention::test
