#include "model/exact_rows.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "ggml-cpu.h"
#include "model/backend.h"

namespace vericache {
namespace {

// Rows up to here are tried one by one: drafts, verifies and small batches.
constexpr int kDenseCounts = 64;
constexpr std::array kSparseCounts = {65, 96, 127, 128, 256, 511, 512, 1024};
// More padding than this costs more than multiplying in groups.
constexpr int kMaxPad = 16;
// Output rows of a matrix that are tried: enough to split among many threads.
constexpr std::int64_t kSliceRows = 256;

std::vector<int> CountsTried() {
  std::vector<int> counts;
  for (int n = 1; n <= kDenseCounts; ++n) {
    counts.push_back(n);
  }
  counts.insert(counts.end(), kSparseCounts.begin(), kSparseCounts.end());
  return counts;
}

// Multiplies a slice of one weight matrix with the first n of a fixed set of random rows. Of a
// packed matrix, of which there are no slices, with one of random numbers that is packed alike.
class Probe {
 public:
  explicit Probe(ggml_tensor* weight)
      : context_(ggml_init(
            {.mem_size = ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true})) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    input_.resize(static_cast<std::size_t>(weight->ne[0] * kSparseCounts.back()));
    for (float& x : input_) {
      x = normal(random);
    }
    const std::int64_t outputs = std::min(weight->ne[1], kSliceRows);
    if (!KindOf(weight).packed) {
      slice_ = ggml_view_2d(context_.get(), weight, weight->ne[0], outputs, weight->nb[1], 0);
      return;
    }
    slice_ = ggml_new_tensor_2d(context_.get(), weight->type, weight->ne[0], outputs);
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(
        context_.get(), ggml_backend_buffer_get_type(weight->buffer)));
    std::vector<std::byte> numbers(ggml_nbytes(slice_));
    ggml_quantize_chunk(slice_->type, input_.data(), numbers.data(), 0, outputs, slice_->ne[0],
                        nullptr);
    ggml_backend_tensor_set(slice_, numbers.data(), 0, numbers.size());
  }

  std::vector<float> Run(ggml_backend_t backend, int rows, RowRule rule) {
    return Compute(backend, rows, rule, nullptr);
  }

  double FlopsPerRow() const { return 2.0 * static_cast<double>(ggml_nelements(slice_)); }

  // The best of several runs.
  double Microseconds(ggml_backend_t backend, int rows, RowRule rule) {
    double best = 0.0;
    Compute(backend, rows, rule, &best);
    return best;
  }

 private:
  std::vector<float> Compute(ggml_backend_t backend, int rows, RowRule rule, double* best_us) {
    const GgmlContext context(
        ggml_init({.mem_size = ggml_tensor_overhead() * 32 + ggml_graph_overhead_custom(32, false),
                   .mem_buffer = nullptr,
                   .no_alloc = true}));
    ggml_tensor* input = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, slice_->ne[0], rows);
    ggml_tensor* product =
        MultiplyRows(context.get(), {.weight = slice_, .bias = nullptr}, input, rule);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 32, false);
    ggml_build_forward_expand(graph, product);
    const GgmlBuffer buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend));
    ggml_backend_tensor_set(input, input_.data(), 0, ggml_nbytes(input));
    ggml_backend_graph_compute(backend, graph);
    for (int i = 0; best_us != nullptr && i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      ggml_backend_graph_compute(backend, graph);
      const double us =
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
              .count();
      *best_us = i == 0 ? us : std::min(*best_us, us);
    }
    std::vector<float> result(static_cast<std::size_t>(ggml_nelements(product)));
    ggml_backend_tensor_get(product, result.data(), 0, ggml_nbytes(product));
    return result;
  }

  GgmlContext context_;
  GgmlBuffer buffer_;
  ggml_tensor* slice_ = nullptr;
  std::vector<float> input_;
};

// True where the rows that both results have are bit-equal.
bool SameRows(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), std::min(a.size(), b.size()) * sizeof(float)) == 0;
}

// What one matrix needs: the classes it shows, the padding that puts all counts into one class, and
// the largest group within the class of a single row.
struct Finding {
  std::set<int> starts = {1};
  int pad_to = 1;
  int group = kSparseCounts.back();
};

Finding Examine(Probe& probe, ggml_backend_t backend) {
  const std::vector<int> counts = CountsTried();
  std::vector<std::vector<float>> results;
  results.reserve(counts.size());
  for (const int n : counts) {
    results.push_back(probe.Run(backend, n, {}));
  }
  Finding finding;
  for (std::size_t i = 1; i < counts.size(); ++i) {
    if (!SameRows(results[i - 1], results[i])) {
      finding.starts.insert(counts[i]);
    }
    if (!SameRows(results[i], results[0])) {
      finding.group = std::min(finding.group, counts[i] - 1);
    }
    if (!SameRows(results[i - 1], results.back())) {
      finding.pad_to = counts[i];
    }
  }
  return finding;
}

// The rule that suits every matrix of a type.
RowRule RuleFor(const std::vector<Finding>& findings) {
  RowRule rule;
  int group = kSparseCounts.back();
  for (const Finding& finding : findings) {
    rule.pad_to = std::max(rule.pad_to, finding.pad_to);
    group = std::min(group, finding.group);
  }
  if (rule.pad_to > kMaxPad) {
    rule = {.pad_to = 1, .group = group};
  }
  return rule;
}

// Whether the rule makes a row's bits depend on nothing else, neither rows nor threads.
bool IsExact(Probe& probe, ggml_backend_t backend, ggml_backend_t one_thread, RowRule rule) {
  bool exact = true;
  for (const int n : {1, 7, 26, 512}) {
    const std::vector<float> here = probe.Run(backend, n, rule);
    exact = exact && SameRows(here, probe.Run(one_thread, n, rule)) &&
            SameRows(here, probe.Run(backend, 511, rule));
  }
  return exact;
}

}  // namespace

ggml_tensor* MultiplyRows(ggml_context* context, const LinearWeights& linear, ggml_tensor* rows,
                          RowRule rule) {
  const std::int64_t n = rows->ne[1];
  ggml_tensor* input = rows;
  ggml_tensor* product = nullptr;
  if (rule.group > 0 && n > rule.group) {
    const std::int64_t groups = (n + rule.group - 1) / rule.group;
    if (groups * rule.group != n) {
      input = ggml_pad(context, input, 0, static_cast<int>(groups * rule.group - n), 0, 0);
    }
    input = ggml_reshape_3d(context, input, rows->ne[0], rule.group, groups);
    product = ggml_mul_mat(context, linear.weight, input);
    product = ggml_reshape_2d(context, product, product->ne[0], groups * rule.group);
  } else {
    if (n < rule.pad_to) {
      input = ggml_pad(context, input, 0, static_cast<int>(rule.pad_to - n), 0, 0);
    }
    product = ggml_mul_mat(context, linear.weight, input);
  }
  if (product->ne[1] != n) {
    product = ggml_view_2d(context, product, product->ne[0], n, product->nb[1], 0);
  }
  return linear.bias == nullptr ? product : ggml_add(context, product, linear.bias);
}

std::vector<TypeReport> CheckRows(const Weights& weights, int threads, bool with_costs) {
  const Backend backend(threads);
  const Backend one_thread(1);
  // One matrix of each kind and row length stands for all.
  struct Kind {
    TypeReport report;
    std::map<std::int64_t, ggml_tensor*> samples;
  };
  std::map<MatrixKind, Kind> kinds;
  for (ggml_tensor* matrix : weights.matrices()) {
    Kind& kind = kinds[KindOf(matrix)];
    kind.report.kind = KindOf(matrix);
    kind.report.matrices += 1;
    kind.report.bytes += Bytes{ggml_nbytes(matrix)};
    kind.samples.try_emplace(matrix->ne[0], matrix);
  }
  std::vector<TypeReport> all;
  for (auto& [key, kind] : kinds) {
    TypeReport& report = kind.report;
    std::vector<Probe> probes;
    std::vector<Finding> findings;
    std::set<int> starts;
    for (const auto& [length, matrix] : kind.samples) {
      findings.push_back(Examine(probes.emplace_back(matrix), backend.get()));
      starts.insert(findings.back().starts.begin(), findings.back().starts.end());
    }
    report.class_starts.assign(starts.begin(), starts.end());
    report.rule = RuleFor(findings);
    for (Probe& probe : probes) {
      report.exact = report.exact && IsExact(probe, backend.get(), one_thread.get(), report.rule);
    }
    for (const int n : {1, 4, 26, 512}) {
      if (with_costs) {
        Probe& probe = probes.front();
        const double exact_us = probe.Microseconds(backend.get(), n, report.rule) / n;
        report.costs.push_back({.rows = n,
                                .plain_us = probe.Microseconds(backend.get(), n, {}) / n,
                                .exact_us = exact_us,
                                .exact_flops_per_s = probe.FlopsPerRow() * 1e6 / exact_us});
      }
    }
    all.push_back(std::move(report));
  }
  return all;
}

ExactRows RulesOf(const std::vector<TypeReport>& reports) {
  ExactRows rules;
  for (const TypeReport& report : reports) {
    rules[report.kind] = report.rule;
  }
  return rules;
}

}  // namespace vericache
