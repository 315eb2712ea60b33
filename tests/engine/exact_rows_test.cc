// The self-check of row counts: what it finds must hold for counts that it did not try, and must
// not change from one time to the next.
#include "model/exact_rows.h"

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/backend.h"
#include "support/tiny_gguf.h"

namespace vericache {
namespace {

constexpr int kMostRows = 512;

// The product of the first `rows` of `input` with a matrix, under a rule.
std::vector<float> Multiply(ggml_backend_t backend, ggml_tensor* matrix,
                            const std::vector<float>& input, int rows, RowRule rule) {
  const GgmlContext context(ggml_init(
      {.mem_size = ggml_tensor_overhead() * 32 + ggml_graph_overhead(), .no_alloc = true}));
  ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, matrix->ne[0], rows);
  ggml_tensor* y = ggml_cont(
      context.get(), MultiplyRows(context.get(), {.weight = matrix, .bias = nullptr}, x, rule));
  ggml_cgraph* graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, y);
  const GgmlBuffer buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend));
  ggml_backend_tensor_set(x, input.data(), 0, ggml_nbytes(x));
  ggml_backend_graph_compute(backend, graph);
  EXPECT_EQ(y->ne[1], rows);
  std::vector<float> result(static_cast<std::size_t>(ggml_nelements(y)));
  ggml_backend_tensor_get(y, result.data(), 0, ggml_nbytes(y));
  return result;
}

class ExactRowsOf : public testing::TestWithParam<ggml_type> {
 protected:
  const Model& model() const { return LoadTiny({.layers = 1, .tied = true, .type = GetParam()}); }
};

TEST_P(ExactRowsOf, RowsDoNotDependOnTheirNumber) {
  const RowRule rule = model().rules().at({GetParam(), false});
  const Backend one_thread(1);
  const Backend two_threads(2);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (ggml_tensor* matrix :
       {model().weights().layers()[0].query.weight, model().weights().layers()[0].down.weight}) {
    std::vector<float> input(static_cast<std::size_t>(matrix->ne[0]) * kMostRows);
    for (float& x : input) {
      x = normal(random);
    }
    const std::vector<float> all = Multiply(one_thread.get(), matrix, input, kMostRows, rule);
    std::vector<int> counts(70);
    std::iota(counts.begin(), counts.end(), 1);
    counts.insert(counts.end(), {100, 333, 511, 512});
    for (const int rows : counts) {
      for (const Backend* backend : {&one_thread, &two_threads}) {
        if (backend == &two_threads && rows > 10 && rows < 511) {
          continue;
        }
        const std::vector<float> some = Multiply(backend->get(), matrix, input, rows, rule);
        EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)), 0)
            << rows << " rows, " << backend->threads() << " threads";
      }
    }
    // A row's place does not matter either: the last 20 rows, alone, are what they were.
    const auto width = static_cast<std::size_t>(matrix->ne[0]);
    const std::vector<float> tail(input.end() - static_cast<std::ptrdiff_t>(20 * width),
                                  input.end());
    const std::vector<float> alone = Multiply(one_thread.get(), matrix, tail, 20, rule);
    EXPECT_EQ(std::memcmp(alone.data(), all.data() + all.size() - alone.size(),
                          alone.size() * sizeof(float)),
              0);
  }
}

TEST_P(ExactRowsOf, CheckIsRepeatable) {
  const std::vector<TypeReport>& first = model().reports();
  for (const int threads : {1, 2}) {
    const std::vector<TypeReport> again = CheckRows(model().weights(), threads, false);
    ASSERT_EQ(again.size(), first.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(again[i].rule, first[i].rule) << threads << " threads";
      EXPECT_EQ(again[i].class_starts, first[i].class_starts);
      EXPECT_EQ(again[i].exact, first[i].exact);
    }
  }
}

TEST_P(ExactRowsOf, ReportIsComplete) {
  ASSERT_EQ(model().reports().size(), 1U);
  const TypeReport& report = model().reports()[0];
  EXPECT_EQ(report.kind, (MatrixKind{GetParam(), false}));
  EXPECT_EQ(report.matrices, 8);  // seven of a layer and the output
  EXPECT_TRUE(report.exact);
  ASSERT_FALSE(report.class_starts.empty());
  EXPECT_EQ(report.class_starts[0], 1);
  if (report.class_starts.size() == 1) {
    EXPECT_EQ(report.rule, RowRule{});
  } else {
    EXPECT_NE(report.rule, RowRule{});
  }
}

INSTANTIATE_TEST_SUITE_P(, ExactRowsOf,
                         testing::Values(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16,
                                         GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                         GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL,
                                         GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,
                                         GGML_TYPE_Q5_K, GGML_TYPE_Q6_K),
                         [](const auto& each) { return std::string(ggml_type_name(each.param)); });

// The rules' shapes by hand: padding and groups give the rows that were asked for.
TEST(MultiplyRowsShapes, PaddingAndGroups) {
  const Model& model = LoadTiny({.layers = 1, .type = GGML_TYPE_Q8_0});  // one class: all equal
  ggml_tensor* matrix = model.weights().layers()[0].up.weight;
  const Backend backend(1);
  std::vector<float> input(static_cast<std::size_t>(matrix->ne[0]) * 64);
  std::iota(input.begin(), input.end(), -5000.0F);
  for (const int rows : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64}) {
    const std::vector<float> plain = Multiply(backend.get(), matrix, input, rows, {});
    for (const RowRule rule : {RowRule{.pad_to = 2}, RowRule{.pad_to = 8}, RowRule{.group = 4},
                               RowRule{.group = 7}, RowRule{.group = 1}}) {
      EXPECT_EQ(Multiply(backend.get(), matrix, input, rows, rule), plain)
          << rows << " rows, pad to " << rule.pad_to << ", groups of " << rule.group;
    }
  }
}

}  // namespace
}  // namespace vericache
