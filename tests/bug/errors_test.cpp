// SPDX-License-Identifier: MIT
// What does not fit is refused at the public boundary, with the function, the extent and both numbers, before anything
// is written.
#include <functional>

#include "bug/copying_layer.hpp"
#include "bug/refused.hpp"

namespace gated_attention::test {
namespace {

/// forward on a small layer, with each argument open to be spoiled; what may be written starts as 77 and must stay so.
struct ForwardCall {
  using Layer = GatedAttention<float, Rope<>, Gate<at::Sdpa>>;
  static constexpr Shape shape{.model_dim = 6, .query_heads = 4, .kv_heads = 2, .head_dim = 2};

  Layer layer = compose<float>(shape, Rope<>{.theta = 1e4}, Gate<at::Sdpa>{});
  PackedWeights<Layer> weights = pack(layer, Parameters(layer));
  Workspace<Layer> workspace{layer, {.tokens = 5, .sequences = 2, .threads = 1}};
  std::vector<float> x = std::vector<float>(200), y = std::vector<float>(200, 77),
                     other = std::vector<float>(200, 77);
  std::vector<Index> lengths, positions;
  MatrixView<const float> x_view{x.data(), 5, 6};
  MatrixView<float> y_view{y.data(), 5, 6};
  Results<float> results;

  ForwardCall() = default;
  ForwardCall(const ForwardCall&) = delete;

  void run() {
    const auto check = [this] {
      for (const std::vector<float>* memory : {&y, &other})
        for (const float number : *memory) ASSERT_EQ(number, 77) << "a refused call wrote";
    };
    try {
      layer.forward({.x = x_view, .lengths = lengths, .positions = positions}, weights, workspace,
                    y_view, results);
    } catch (...) {
      check();
      throw;
    }
  }

  /// The call with something spoiled.
  static std::function<void()> with(const std::function<void(ForwardCall&)>& spoil) {
    return [spoil] {
      ForwardCall call;
      spoil(call);
      call.run();
    };
  }
};

TEST(Errors, OfForwardNameFunctionExtentAndBothNumbers) {
  using Call = ForwardCall;
  const std::string function = "GatedAttention::forward: ";
  const std::vector<Refused> cases = {
      {"x too wide",
       Call::with([](Call& c) {
         c.x_view = {c.x.data(), 5, 7};
       }),
       {function, "x has 7 columns", "model_dim is 6"}},
      {"y too narrow",
       Call::with([](Call& c) {
         c.y_view = {c.y.data(), 5, 5};
       }),
       {function, "y has 5 columns", "model_dim is 6"}},
      {"y too short",
       Call::with([](Call& c) {
         c.y_view = {c.y.data(), 4, 6};
       }),
       {function, "y has 4 rows", "5 tokens"}},
      {"batch too long",
       Call::with([](Call& c) {
         c.x_view = {c.x.data(), 6, 6};
         c.y_view = {c.y.data(), 6, 6};
       }),
       {function, "the batch has 6 tokens", "made for 5"}},
      {"too many sequences",
       Call::with([](Call& c) {
         c.lengths = {1, 2, 2};
       }),
       {function, "the batch has 3 sequences", "made for 2"}},
      {"negative length",
       Call::with([](Call& c) {
         c.lengths = {6, -1};
       }),
       {function, "6", "5"}},
      {"negative length first",
       Call::with([](Call& c) {
         c.lengths = {-1, 6};
       }),
       {function, "lengths is -1", "the least is 0"}},
      {"lengths too long",
       Call::with([](Call& c) {
         c.lengths = {3, 3};
       }),
       {function, "lengths is 3 behind a sum of 3", "x has 5 rows"}},
      {"lengths that overflow",
       Call::with([](Call& c) {
         c.lengths = {1, std::numeric_limits<Index>::max()};
       }),
       {function, "x has 5 rows"}},
      {"lengths too short",
       Call::with([](Call& c) {
         c.lengths = {3, 1};
       }),
       {function, "the lengths sum to 4", "x has 5 rows"}},
      {"positions too few",
       Call::with([](Call& c) {
         c.positions = {0, 1, 2, 3};
       }),
       {function, "there are 4 positions", "x has 5 rows"}},
      {"y over x",
       Call::with([](Call& c) {
         c.y_view = {c.y.data() + 1, 5, 6};
         c.x_view = {c.y.data(), 5, 6};
       }),
       {function, "y overlaps x", "1 elements"}},
      {"y over x from behind",
       Call::with([](Call& c) {
         c.y_view = {c.y.data(), 5, 6};
         c.x_view = {c.y.data() + 6, 5, 6};
       }),
       {function, "y overlaps x", "-6 elements"}},
      {"y over x with another stride",
       Call::with([](Call& c) {
         c.y_view = {c.y.data(), 5, 6, 7};
         c.x_view = {c.y.data(), 5, 6, 6};
       }),
       {function, "y overlaps x"}},
      {"y over x side by side, too near",
       Call::with([](Call& c) {
         c.y_view = {c.y.data() + 5, 5, 6, 12};
         c.x_view = {c.y.data(), 5, 6, 12};
       }),
       {function, "y overlaps x", "5 elements"}},
      {"attention of other heads",
       Call::with([](Call& c) {
         c.results.attention = {c.other.data(), 5, 3, 2};
       }),
       {function, "results.attention has 3 heads", "4"}},
      {"attention of other tokens",
       Call::with([](Call& c) {
         c.results.attention = {c.other.data(), 4, 4, 2};
       }),
       {function, "results.attention has 4 tokens", "5"}},
      {"attention of another width",
       Call::with([](Call& c) {
         c.results.attention = {c.other.data(), 5, 4, 3};
       }),
       {function, "results.attention has 3 channels", "2"}},
      {"log_sum_exp of other heads",
       Call::with([](Call& c) {
         c.results.log_sum_exp = {c.other.data(), 5, 3};
       }),
       {function, "results.log_sum_exp has 3 columns", "query_heads is 4"}},
      {"log_sum_exp of other tokens",
       Call::with([](Call& c) {
         c.results.log_sum_exp = {c.other.data(), 4, 4};
       }),
       {function, "results.log_sum_exp has 4 rows", "5 tokens"}},
      {"first_token_attention of other heads",
       Call::with([](Call& c) {
         c.results.first_token_attention = {c.other.data(), 5, 3};
       }),
       {function, "results.first_token_attention has 3 columns", "query_heads is 4"}},
      {"first_token_attention without log_sum_exp",
       Call::with([](Call& c) {
         c.results.first_token_attention = {c.other.data(), 5, 4};
       }),
       {function, "results.first_token_attention of 5 rows", "results.log_sum_exp, which has 0"}},
      {"gate scores of another width",
       Call::with([](Call& c) {
         c.results.gate_scores.sdpa = {c.other.data(), 5, 4, 1};
       }),
       {function, "results.gate_scores has 1 channels", "2"}},
      {"gate scores where there is no gate",
       Call::with([](Call& c) {
         c.results.gate_scores.value = {c.other.data(), 5, 2, 2};
       }),
       {function, "results.gate_scores", "value", "5", "0 gates"}},
      {"weights of another layer",
       Call::with([](Call& c) {
         const auto other =
             ForwardCall::Layer({.model_dim = 8, .query_heads = 4, .kv_heads = 2, .head_dim = 2},
                                Rope<>{.theta = 1e4});
         c.weights = pack(other, Parameters(other));
       }),
       {function, "the weights were packed", "model_dim 8", "6"}},
      {"workspace of another layer",
       Call::with([](Call& c) {
         const auto other =
             ForwardCall::Layer({.model_dim = 6, .query_heads = 2, .kv_heads = 2, .head_dim = 2},
                                Rope<>{.theta = 1e4});
         c.workspace = Workspace(other, {.tokens = 5, .sequences = 2, .threads = 1});
       }),
       {function, "the workspace was made", "2 query heads", "4"}},
  };
  expect_refused(cases);
}

TEST(Errors, OfForwardAreNotRaisedForWhatFits) {
  const auto runs = [](const std::function<void(ForwardCall&)>& change) {
    ForwardCall call;
    change(call);
    EXPECT_NO_THROW(call.run());
  };
  runs([](ForwardCall&) {});
  runs([](ForwardCall& c) { c.lengths = {0, 5}; });
  runs([](ForwardCall& c) { c.positions = {3, 3, 3, -1, Index{1} << 50}; });
  runs([](ForwardCall& c) { c.x_view = {c.y.data(), 5, 6}; });
  runs([](ForwardCall& c) { c.x_view = {c.y.data() + 30, 5, 6}; });
  runs([](ForwardCall& c) {
    c.x_view = {c.y.data(), 5, 6, 12};
    c.y_view = {c.y.data() + 6, 5, 6, 12};
  });
  runs([](ForwardCall& c) {
    c.x_view = {c.x.data(), 0, 6};
    c.y_view = {c.y.data(), 0, 6};
  });
}

template <class... Stages>
std::function<void()> made(const Shape& shape, const Stages&... stages) {
  return [=] { static_cast<void>(compose<float>(shape, stages...)); };
}

TEST(Errors, OfALayersNumbersNameThemAndTheirBounds) {
  const Shape good{.model_dim = 6, .query_heads = 4, .kv_heads = 2, .head_dim = 4};
  const auto with = [good](Index Shape::*extent, Index value) {
    Shape shape = good;
    shape.*extent = value;
    return shape;
  };
  const std::string function = "GatedAttention";
  const double nan_number = nan<double>, big = infinity<double>;
  const std::vector<Refused> cases = {
      {"model_dim",
       made(with(&Shape::model_dim, 0)),
       {function, "model_dim is 0", "the least is 1"}},
      {"query_heads",
       made(with(&Shape::query_heads, -4)),
       {function, "query_heads is -4", "the least is 1"}},
      {"kv_heads", made(with(&Shape::kv_heads, 0)), {function, "kv_heads is 0", "the least is 1"}},
      {"head_dim", made(with(&Shape::head_dim, 0)), {function, "head_dim is 0", "the least is 1"}},
      {"value_dim",
       made(with(&Shape::value_dim, -1)),
       {function, "value_dim is -1", "the least is 0"}},
      {"groups", made(with(&Shape::kv_heads, 3)), {function, "query_heads is 4", "kv_heads, 3"}},
      {"extents beyond an index",
       made(Shape{.model_dim = Index{1} << 31,
                  .query_heads = Index{1} << 20,
                  .kv_heads = 1,
                  .head_dim = Index{1} << 20}),
       {function, "more than an index can count"}},
      {"heads beyond an index",
       made(Shape{.model_dim = 1,
                  .query_heads = Index{1} << 40,
                  .kv_heads = 1,
                  .head_dim = Index{1} << 40}),
       {function, "more than an index can count"}},
      {"eps below 0",
       made(good, QkNorm<>{.eps = -1e-6}),
       {function, "eps of the norm at query is -1e-06,", "at least 0"}},
      {"eps not a number",
       made(good, Normalize<at::Sdpa>{.eps = nan_number}),
       {function, "eps", "sdpa", "finite"}},
      {"a cap with a fraction",
       made(good, Softcap{.cap = -0.1}),
       {function, "cap is -0.1, it must be finite"}},
      {"factor", made(good, Scale<at::Key>{.factor = big}), {function, "factor at key", "finite"}},
      {"window",
       made(good, SlidingWindow{.window = 0}),
       {"SlidingWindow", "window is 0", "the least is 1"}},
      {"odd rotary_dim",
       made(good, Rope<>{.theta = 1e4, .rotary_dim = 3}),
       {function, "rotary_dim is 3", "even"}},
      {"rotary_dim below 0",
       made(good, Rope<>{.theta = 1e4, .rotary_dim = -2}),
       {function, "rotary_dim is -2"}},
      {"rotary_dim beyond the head",
       made(good, Rope<>{.theta = 1e4, .rotary_dim = 6}),
       {function, "channels 0 to 6", "head_dim is 4"}},
      {"rotary_dim far beyond the head",
       made(good, Rope<>{.theta = 1e4, .rotary_dim = Index{1} << 50}),
       {function, "channels 0 to 1125899906842624", "head_dim is 4"}},
      {"first_dim",
       made(good, Rope<>{.theta = 1e4, .rotary_dim = 2, .first_dim = 3}),
       {function, "channels 3 to 5", "head_dim is 4"}},
      {"first_dim below 0",
       made(good, Rope<>{.theta = 1e4, .rotary_dim = 2, .first_dim = -2}),
       {function, "first_dim -2"}},
      {"rotated_pairs",
       made(good, Rope<>{.theta = 1e4, .rotated_pairs = 3}),
       {function, "rotated_pairs is 3", "2 pairs"}},
      {"theta", made(good, Rope<>{.theta = 0}), {"theta is 0", "positive"}},
      {"YaRN",
       made(good, Rope<>{.theta = 1e4, .yarn = Yarn{.factor = 0, .original_max_position = 4096}}),
       {"factor is 0", "positive"}},
  };
  expect_refused(cases);
}

TEST(Errors, WriteNumbersInTheFewestDigitsThatReadBack) {
  const auto text = [](auto number) { return detail::message("is ", number, ","); };
  EXPECT_EQ(text(0.5), "is 0.5,");
  EXPECT_EQ(text(-1e-6), "is -1e-06,");
  EXPECT_EQ(text(1e-6F), "is 1e-06,");
  EXPECT_EQ(text(0.1), "is 0.1,");
  EXPECT_EQ(text(0.1F), "is 0.1,");
  EXPECT_EQ(text(1.0 / 3), "is 0.3333333333333333,");
  EXPECT_EQ(text(0.0), "is 0,");
  EXPECT_EQ(text(-5.0), "is -5,");
  EXPECT_EQ(text(10000.0), "is 10000,");
  EXPECT_EQ(text(1e7), "is 1e+07,");
  EXPECT_EQ(text(-std::numeric_limits<double>::denorm_min()), "is -5e-324,");
  EXPECT_EQ(text(-std::numeric_limits<double>::max()), "is -1.7976931348623157e+308,");
  EXPECT_EQ(text(infinity<double>), "is inf,");
  EXPECT_EQ(text(std::abs(nan<double>)), "is nan,");
  EXPECT_EQ(text(std::numeric_limits<Index>::min()), "is -9223372036854775808,");
  EXPECT_EQ(text(std::numeric_limits<std::size_t>::max()), "is 18446744073709551615,");
}

TEST(Errors, OfWorkspacesAndParametersNameBothNumbers) {
  const auto layer = compose<float>(
      {.model_dim = 6, .query_heads = 4, .kv_heads = 2, .head_dim = 4}, QkNorm<>{.eps = 0});
  const auto wider = compose<float>(
      {.model_dim = 7, .query_heads = 4, .kv_heads = 2, .head_dim = 4}, QkNorm<>{.eps = 0});
  const auto more = compose<float>({.model_dim = 6, .query_heads = 4, .kv_heads = 2, .head_dim = 4},
                                   Gate<at::Sdpa>{});
  alignas(64) std::byte memory[1 << 16];
  const Limits limits{.tokens = 2, .threads = 1};
  const std::string needed = std::to_string(layer.workspace_bytes(limits));
  const std::vector<Refused> cases = {
      {"tokens",
       [&] { Workspace(layer, {.tokens = -1, .threads = 1}); },
       {"Workspace", "tokens is -1", "least is 0"}},
      {"sequences",
       [&] { Workspace(layer, {.tokens = 1, .sequences = 0, .threads = 1}); },
       {"Workspace", "sequences is 0", "least is 1"}},
      {"threads",
       [&] { Workspace(layer, {.tokens = 1, .threads = -2}); },
       {"Workspace", "threads is -2", "least is 0"}},
      {"memory",
       [&] {
         Workspace<std::decay_t<decltype(layer)>>(layer, limits, {memory, 640});
       },
       {"Workspace", "640 bytes", needed}},
      {"boundary",
       [&] {
         Workspace<std::decay_t<decltype(layer)>>(layer, limits, {memory + 8, sizeof(memory) - 8});
       },
       {"Workspace", "8 bytes past a boundary of 64"}},
      {"parameters of another shape",
       [&] { static_cast<void>(pack(layer, Parameters(wider))); },
       {"pack", "q_proj.weight [16, 7]", "[16, 6]"}},
      {"parameters of other stages",
       [&] { static_cast<void>(pack(layer, Parameters(more))); },
       {"pack", "5 tensors", "6"}},
      {"a tensor there is not",
       [&] { static_cast<void>(Parameters(layer)["gate.weight"]); },
       {"Parameters", "gate.weight", "q_proj.weight, k_proj.weight"}},
  };
  expect_refused(cases);
}

TEST(Errors, OfViewsNameBothNumbers) {
  float numbers[64] = {};
  const Eigen::Map<Eigen::Matrix<float, 2, 2, Eigen::RowMajor>, 0,
                   Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>
      map(numbers, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(8, 2));
  const std::vector<Refused> cases = {
      {"row stride",
       [&] { MatrixView<float>(numbers, 3, 6, 5); },
       {"MatrixView", "3 rows of 6 columns", "stride of 5"}},
      {"rows", [&] { MatrixView<float>(numbers, -1, 6); }, {"MatrixView", "-1 rows"}},
      {"inner stride",
       [&] { MatrixView<const float> view(map); },
       {"MatrixView", "inner stride is 2", "1 apart"}},
      {"heads", [&] { HeadsView<float>(numbers, 2, -3, 4); }, {"HeadsView", "-3 heads"}},
      {"product",
       [&] { detail::checked_product(Index{1} << 40, Index{1} << 40, "offset"); },
       {"offset", "1099511627776 x 1099511627776", "more than an index can count"}},
  };
  expect_refused(cases);
}

/// Attend with each argument open to be spoiled.
struct AttendCall {
  using Layer = Attend<float, Causal, Gate<at::Sdpa>>;

  Layer attend{{.query_heads = 4, .kv_heads = 2, .head_dim = 3, .value_dim = 2}};
  AttendWorkspace<Layer> workspace{attend, {.tokens = 5, .keys = 7, .sequences = 2, .threads = 1}};
  std::vector<float> in = std::vector<float>(400), out = std::vector<float>(400, 77);
  std::vector<Index> lengths, key_lengths;
  AttendBatch<float> batch{.q = {in.data(), 5, 4, 3},
                           .k = {in.data(), 7, 2, 3},
                           .v = {in.data(), 7, 2, 2},
                           .gate_logits = {in.data(), 5, 4, 2}};
  HeadsView<float> out_view{out.data(), 5, 4, 2};
  AttendResults<float> results;

  AttendCall() = default;
  AttendCall(const AttendCall&) = delete;

  static std::function<void()> with(const std::function<void(AttendCall&)>& spoil) {
    return [spoil] {
      AttendCall call;
      spoil(call);
      call.batch.lengths = call.lengths;
      call.batch.key_lengths = call.key_lengths;
      try {
        call.attend(call.batch, call.workspace, call.out_view, call.results);
      } catch (...) {
        for (const float number : call.out) EXPECT_EQ(number, 77) << "a refused call wrote";
        throw;
      }
    };
  }
};

TEST(Errors, OfAttendNameExtentAndBothNumbers) {
  using Call = AttendCall;
  const auto in = [](Call& c, Index t, Index h, Index w) {
    return HeadsView<const float>(c.in.data(), t, h, w);
  };
  const std::vector<Refused> cases = {
      {"q heads",
       Call::with([=](Call& c) { c.batch.q = in(c, 5, 3, 3); }),
       {"Attend: q has 3 heads", "4"}},
      {"q channels",
       Call::with([=](Call& c) { c.batch.q = in(c, 5, 4, 2); }),
       {"Attend: q has 2 channels", "3"}},
      {"k heads",
       Call::with([=](Call& c) { c.batch.k = in(c, 7, 4, 3); }),
       {"Attend: k has 4 heads", "2"}},
      {"k channels",
       Call::with([=](Call& c) { c.batch.k = in(c, 7, 2, 2); }),
       {"Attend: k has 2 channels", "3"}},
      {"v tokens",
       Call::with([=](Call& c) { c.batch.v = in(c, 6, 2, 2); }),
       {"Attend: v has 6 tokens", "7"}},
      {"v channels",
       Call::with([=](Call& c) { c.batch.v = in(c, 7, 2, 3); }),
       {"Attend: v has 3 channels", "2"}},
      {"no logits",
       Call::with([](Call& c) { c.batch.gate_logits = {}; }),
       {"Attend: gate_logits has 0 tokens", "5"}},
      {"logits of another width",
       Call::with([=](Call& c) { c.batch.gate_logits = in(c, 5, 4, 1); }),
       {"Attend: gate_logits has 1 channels", "2"}},
      {"out tokens",
       Call::with([](Call& c) {
         c.out_view = {c.out.data(), 4, 4, 2};
       }),
       {"Attend: out has 4 tokens", "5"}},
      {"out channels",
       Call::with([](Call& c) {
         c.out_view = {c.out.data(), 5, 4, 3};
       }),
       {"Attend: out has 3 channels", "2"}},
      {"attention",
       Call::with([](Call& c) {
         c.results.attention = {c.out.data(), 5, 4, 3};
       }),
       {"Attend: results.attention has 3 channels", "2"}},
      {"log_sum_exp",
       Call::with([](Call& c) {
         c.results.log_sum_exp = {c.out.data(), 5, 3};
       }),
       {"Attend: results.log_sum_exp has 3 columns", "4"}},
      {"lengths",
       Call::with([](Call& c) {
         c.lengths = {2, 2};
         c.key_lengths = {3, 4};
       }),
       {"Attend: lengths sum to 4", "q has 5 tokens"}},
      {"key_lengths",
       Call::with([](Call& c) {
         c.lengths = {2, 3};
         c.key_lengths = {3, 5};
       }),
       {"Attend: key_lengths holds 5 behind a sum of 3", "k has 7 tokens"}},
      {"negative length",
       Call::with([](Call& c) {
         c.lengths = {-1, 6};
         c.key_lengths = {3, 4};
       }),
       {"Attend: lengths holds -1"}},
      {"counts of sequences",
       Call::with([](Call& c) {
         c.lengths = {2, 3};
       }),
       {"Attend", "2 sequences of queries", "1 of keys"}},
      {"keys beyond the workspace",
       Call::with([=](Call& c) {
         c.batch.k = in(c, 8, 2, 3);
         c.batch.v = in(c, 8, 2, 2);
       }),
       {"Attend", "8 keys", "made for 5, 7 and 2"}},
      {"a workspace of another shape",
       Call::with([](Call& c) {
         const Call::Layer other({.query_heads = 2, .kv_heads = 2, .head_dim = 3, .value_dim = 2});
         c.workspace =
             AttendWorkspace(other, {.tokens = 5, .keys = 7, .sequences = 2, .threads = 1});
       }),
       {"Attend", "the workspace was made for query_heads 2", "4"}},
      {"workspace keys",
       [] {
         AttendWorkspace(AttendCall::Layer({.query_heads = 1, .kv_heads = 1, .head_dim = 1}),
                         {.tokens = 1, .keys = -1, .threads = 1});
       },
       {"AttendWorkspace", "keys is -1", "least is 0"}},
      {"workspace beyond an index",
       [] {
         AttendWorkspace(
             AttendCall::Layer({.query_heads = 1, .kv_heads = 1, .head_dim = 1}),
             {.tokens = 1, .keys = std::numeric_limits<Index>::max() / 2, .threads = 1});
       },
       {"Attend", "more than an index can count"}},
      {"head_dim",
       [] { AttendCall::Layer({.query_heads = 1, .kv_heads = 1, .head_dim = 0}); },
       {"Attend: head_dim is 0", "1"}},
  };
  expect_refused(cases);
}

}  // namespace
}  // namespace gated_attention::test
