// SPDX-License-Identifier: MIT
#include <string>
#include <vector>

#include "golden/golden.hpp"

// The paper's variants with a norm (1 + w) of queries and keys and rotation of half the head.

namespace gated_attention::test {
namespace {

using OnePlus = RmsNorm<weight::OffsetFromOne>;

/// A variant with these stages behind norm and rotation.
template <class... Stages>
Entry rope(const std::string& name, const Stages&... stages) {
  return variant("variants_rope", name, [stages...]<class Scalar>(Scalar, const Numbers& n) {
    return compose<Scalar>(n.shape, QkNorm<OnePlus>{.eps = n.eps},
                           Rope<>{.theta = n.theta, .rotary_dim = n.rotary_dim}, stages...);
  });
}

/// A variant whose gate stands before the norm.
template <class Gate>
Entry gate_first(const std::string& name, Gate gate) {
  return variant("variants_rope", name, [gate]<class Scalar>(Scalar, const Numbers& n) {
    return compose<Scalar>(n.shape, gate, QkNorm<OnePlus>{.eps = n.eps},
                           Rope<>{.theta = n.theta, .rotary_dim = n.rotary_dim}, Causal{});
  });
}

/// A variant whose first stage stands between norm and rotation.
template <class Gate, class... Stages>
Entry norm_first(const std::string& name, Gate gate, const Stages&... stages) {
  return variant("variants_rope", name, [gate, stages...]<class Scalar>(Scalar, const Numbers& n) {
    return compose<Scalar>(n.shape, QkNorm<OnePlus>{.eps = n.eps}, gate,
                           Rope<>{.theta = n.theta, .rotary_dim = n.rotary_dim}, stages...);
  });
}

const std::vector<Entry>& table() {
  static const std::vector<Entry> entries = {
      rope("no_gate", Causal{}),
      rope("sdpa_elementwise", Causal{}, Gate<at::Sdpa>{}),
      rope("value_elementwise", Causal{}, Gate<at::Value>{}),
      rope("output_elementwise", Causal{}, Gate<at::Output>{}),
      rope("sdpa_headwise", Causal{}, Gate<at::Sdpa, Headwise>{}),
      rope("value_headwise", Causal{}, Gate<at::Value, Headwise>{}),
      rope("sdpa_elementwise_shared_heads", Causal{}, Gate<at::Sdpa, SharedHeads>{}),
      rope("value_elementwise_shared_heads", Causal{}, Gate<at::Value, SharedHeads>{}),
      rope("sdpa_elementwise_head_mean", Causal{}, Gate<at::Sdpa, HeadMean>{}),
      rope("value_elementwise_head_mean", Causal{}, Gate<at::Value, HeadMean>{}),
      rope("sdpa_elementwise_add_silu", Causal{}, Gate<at::Sdpa, Add, Silu>{}),
      rope("sdpa_elementwise_silu", Causal{}, Gate<at::Sdpa, Silu>{}),
      rope("sdpa_elementwise_add_identity", Causal{}, Gate<at::Sdpa, Add, Identity>{}),
      rope("sdpa_elementwise_non_sparse_sigmoid", Causal{}, Gate<at::Sdpa, NonSparseSigmoid>{}),
      rope("sdpa_elementwise_tanh", Causal{}, Gate<at::Sdpa, Tanh>{}),
      rope("sdpa_elementwise_softplus", Causal{}, Gate<at::Sdpa, Softplus>{}),
      rope("sdpa_elementwise_twice_sigmoid", Causal{}, Gate<at::Sdpa, TwiceSigmoid>{}),
      rope("sdpa_headwise_twice_sigmoid_bias", Causal{},
           Gate<at::Sdpa, Headwise, TwiceSigmoid, Bias>{}),
      rope("sdpa_elementwise_constant", Causal{}, Gate<at::Sdpa, Constant>{}),
      rope("sdpa_elementwise_bias", Causal{}, Gate<at::Sdpa, Bias>{}),
      rope("activate_sdpa_silu", Causal{}, Activate<at::Sdpa, Silu>{}),
      rope("sdpa_elementwise_value_dim", Causal{}, Gate<at::Sdpa>{}),
      gate_first("gate_then_normalize_key_elementwise", Gate<at::Key>{}),
      gate_first("gate_then_normalize_key_headwise", Gate<at::Key, Headwise>{}),
      gate_first("gate_then_normalize_query_elementwise", Gate<at::Query>{}),
      gate_first("gate_then_normalize_query_headwise", Gate<at::Query, Headwise>{}),
      norm_first("normalize_then_gate_key_elementwise", Gate<at::Key>{}, Causal{}),
      norm_first("normalize_then_gate_query_elementwise", Gate<at::Query>{}, Causal{}),
      norm_first("sdpa_value_query_elementwise", Gate<at::Query>{}, Causal{}, Gate<at::Value>{},
                 Gate<at::Sdpa>{}),
      rope("normalize_rope_then_gate_key_elementwise", Causal{}, Gate<at::Key>{}),
      rope("normalize_rope_then_gate_query_elementwise", Causal{}, Gate<at::Query>{}),
      variant("variants_rope", "normalize_sdpa",
              []<class Scalar>(Scalar, const Numbers& n) {
                return compose<Scalar>(n.shape, QkNorm<OnePlus>{.eps = n.eps},
                                       Rope<>{.theta = n.theta, .rotary_dim = n.rotary_dim},
                                       Causal{}, Normalize<at::Sdpa>{.eps = n.eps});
              }),
      variant("variants_rope", "sdpa_elementwise_sliding_window",
              []<class Scalar>(Scalar, const Numbers& n) {
                return compose<Scalar>(n.shape, QkNorm<OnePlus>{.eps = n.eps},
                                       Rope<>{.theta = n.theta, .rotary_dim = n.rotary_dim},
                                       SlidingWindow{.window = n.window}, Gate<at::Sdpa>{});
              }),
      rope("sdpa_elementwise_learned_sink", Causal{}, LearnedSink{}, Gate<at::Sdpa>{}),
      variant("variants_rope", "sdpa_elementwise_softcap",
              []<class Scalar>(Scalar, const Numbers& n) {
                return compose<Scalar>(n.shape, QkNorm<OnePlus>{.eps = n.eps},
                                       Rope<>{.theta = n.theta, .rotary_dim = n.rotary_dim},
                                       Causal{}, Softcap{.cap = n.softcap}, Gate<at::Sdpa>{});
              }),
  };
  return entries;
}

INSTANTIATE_TEST_SUITE_P(VariantsRope, RecordedLayer, testing::ValuesIn(table()), entry_name);
INSTANTIATE_TEST_SUITE_P(VariantsRope, RecordedCausalLayer, testing::ValuesIn(extendable(table())),
                         entry_name);

TEST(VariantsRope, EveryVariantIsTestedOrNamed) {
  expect_variants("variants_rope", table(), {});
}

}  // namespace
}  // namespace gated_attention::test
