// Attention of one layer over one request's cache: ours, for each format, and ggml's flash
// attention on an f16 cache, on the same shape in the same run. Counters: GB/s of cache bytes,
// GFLOP/s.
//
//   build/bench/bench_attention --benchmark_filter=context:8192
//
// Shapes are SmolLM2-135M's: 9 heads over 3 KV heads of 64.

#include <algorithm>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "attention/batch_attention.h"
#include "base/threads.h"
#include "benchmark/benchmark.h"
#include "compressor/compressor.h"
#include "ggml-backend.h"
#include "kvcache/kvquant.h"
#include "model/backend.h"
#include "model/weights.h"

namespace vericache {
namespace {

constexpr int kHeads = 9;
constexpr CacheGeometry kGeometry = {.layers = 1, .kv_heads = 3, .head_dim = 64};
constexpr LayerId kLayer{0};

std::vector<float> Random(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) {
    x = normal(random);
  }
  return numbers;
}

void Report(benchmark::State& state, double bytes, double rows, double context) {
  const double flops = 4.0 * rows * context * kHeads * kGeometry.head_dim;
  state.counters["GB/s"] =
      benchmark::Counter(bytes / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

// Runs a ggml graph of one node many times.
class Graph {
 public:
  Graph()
      : backend_(HardwareThreads()),
        context_(ggml_init(
            {.mem_size = std::size_t{1} << 20U, .mem_buffer = nullptr, .no_alloc = true})),
        graph_(ggml_new_graph(context_.get())) {}

  ggml_context* context() { return context_.get(); }
  void Build(ggml_tensor* node) {
    ggml_build_forward_expand(graph_, node);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend_.get()));
  }
  void Run() { ggml_backend_graph_compute(backend_.get(), graph_); }

 private:
  Backend backend_;
  GgmlContext context_;
  ggml_cgraph* graph_;
  GgmlBuffer buffer_;
};

// KVQuant's keys are rotated by what a table says; what it says takes no other time.
std::shared_ptr<const KvQuant> WithRope(int context) {
  constexpr std::size_t kPairs = 32;
  const std::size_t coarse = kPairs * static_cast<std::size_t>(context / RopeTable::kStep + 1);
  constexpr std::size_t kFine = kPairs * RopeTable::kFine;
  const auto kvquant = std::make_shared<KvQuant>();
  kvquant->rope = std::make_shared<const RopeTable>(
      kGeometry.head_dim, /*neox=*/true,
      RopeTable::Angles{std::vector<float>(coarse, 1.0F), std::vector<float>(coarse)},
      RopeTable::Angles{std::vector<float>(kFine, 1.0F), std::vector<float>(kFine)});
  return kvquant;
}

void Ours(benchmark::State& state, const char* compressor_name) {
  const auto context = static_cast<int>(state.range(0));
  const auto rows = static_cast<int>(state.range(1));
  PagePool pool({std::uint64_t{1} << 32U});
  KvCache full(pool, PageKind::kResident, kGeometry, {});
  if (!full.Extend(context)) {
    state.SkipWithError("no memory");
    return;
  }
  const std::vector<float> numbers = Random(64);
  for (int slot = 0; slot < context; ++slot) {
    for (int head = 0; head < kGeometry.kv_heads; ++head) {
      full.Write(kLayer, slot, head, numbers, numbers);
    }
  }
  Compressor compressor = MakeCompressor(compressor_name);
  if (compressor.IsKvQuant()) {
    compressor.kvquant = {WithRope(context)};
  }
  KvCache cache =
      Compress(compressor, {.full = full, .positions = context, .heads = kHeads}, 1.0, pool);
  if (!cache.Extend(rows)) {
    state.SkipWithError("no memory");
    return;
  }
  BatchAttention attention(SelectKernel(), SelectDraftKernel(), kGeometry, kHeads,
                           HardwareThreads());
  const bool drafts = std::string_view(compressor_name) != "none";
  const AttentionTask task{.cache = &cache,
                           .first_row = 0,
                           .rows = rows,
                           .first_position = 0,
                           .use = drafts ? AttentionUse::kDraft : AttentionUse::kFull};
  attention.Begin({&task, 1}, rows);

  Graph graph;
  ggml_tensor* q = ggml_new_tensor_3d(graph.context(), GGML_TYPE_F32, 64, kHeads, rows);
  ggml_tensor* kv = ggml_new_tensor_3d(graph.context(), GGML_TYPE_F32, 64, 3, rows);
  std::array<ggml_tensor*, 2> append_arguments = {q, kv};
  ggml_tensor* appended = ggml_custom_4d(
      graph.context(), GGML_TYPE_F32, 1, 1, 1, 1, append_arguments.data(), 2,
      [](ggml_tensor* dst, int thread, int threads, void* user) {
        const auto* k = static_cast<const float*>(dst->src[1]->data);
        static_cast<BatchAttention*>(user)->Append(
            kLayer, static_cast<const float*>(dst->src[0]->data), k, k, thread, threads);
      },
      GGML_N_TASKS_MAX, &attention);
  std::array<ggml_tensor*, 2> arguments = {q, appended};
  graph.Build(ggml_custom_4d(
      graph.context(), GGML_TYPE_F32, 64L * kHeads, rows, 1, 1, arguments.data(), 2,
      [](ggml_tensor* dst, int thread, int threads, void* user) {
        static_cast<BatchAttention*>(user)->Attend(kLayer,
                                                   static_cast<const float*>(dst->src[0]->data),
                                                   static_cast<float*>(dst->data), thread, threads);
      },
      GGML_N_TASKS_MAX, &attention));
  const std::vector<float> queries = Random(static_cast<std::size_t>(64 * kHeads * rows));
  ggml_backend_tensor_set(q, queries.data(), 0, ggml_nbytes(q));
  ggml_backend_tensor_set(kv, queries.data(), 0, ggml_nbytes(kv));
  for (auto _ : state) {
    graph.Run();
  }
  Report(state, static_cast<double>(cache.bytes().count), rows, context);
}

void GgmlFlash(benchmark::State& state) {
  const auto context = state.range(0);
  const auto rows = state.range(1);
  Graph graph;
  ggml_context* c = graph.context();
  ggml_tensor* q = ggml_new_tensor_3d(c, GGML_TYPE_F32, 64, rows, kHeads);
  ggml_tensor* k = ggml_new_tensor_3d(c, GGML_TYPE_F16, 64, context, 3);
  ggml_tensor* v = ggml_new_tensor_3d(c, GGML_TYPE_F16, 64, context, 3);
  ggml_tensor* mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, context, rows);
  graph.Build(ggml_flash_attn_ext(c, q, k, v, mask, 0.125F, 0.0F, 0.0F));
  const std::vector<float> numbers = Random(static_cast<std::size_t>(ggml_nelements(k)));
  std::vector<ggml_fp16_t> half(numbers.size());
  ggml_fp32_to_fp16_row(numbers.data(), half.data(), static_cast<std::int64_t>(half.size()));
  const std::vector<float> queries = Random(static_cast<std::size_t>(ggml_nelements(q)));
  ggml_backend_tensor_set(q, queries.data(), 0, ggml_nbytes(q));
  ggml_backend_tensor_set(k, half.data(), 0, ggml_nbytes(k));
  ggml_backend_tensor_set(v, half.data(), 0, ggml_nbytes(v));
  std::vector<ggml_fp16_t> causal(static_cast<std::size_t>(context * rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t slot = context - rows + row + 1; slot < context; ++slot) {
      causal[static_cast<std::size_t>(row * context + slot)] = ggml_fp32_to_fp16(-INFINITY);
    }
  }
  ggml_backend_tensor_set(mask, causal.data(), 0, ggml_nbytes(mask));
  for (auto _ : state) {
    graph.Run();
  }
  Report(state, static_cast<double>(ggml_nbytes(k) + ggml_nbytes(v)), static_cast<double>(rows),
         static_cast<double>(context));
}

// One row: decode or draft; a few: verify; many: prefill.
void FullShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"context", "rows"})
      ->ArgsProduct({{1024, 8192}, {1, 8, 26, 512}})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

// On a compressed cache there are only drafts.
void DraftShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"context", "rows"})
      ->ArgsProduct({{1024, 8192}, {1}})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

BENCHMARK(GgmlFlash)->Apply(FullShapes);
BENCHMARK_CAPTURE(Ours, f16, "none")->Apply(FullShapes);
BENCHMARK_CAPTURE(Ours, q8, "q8")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, q4, "q4")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, q4r, "q4r")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, kivi4, "kivi4")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, kivi2, "kivi2")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, rotatekv4, "rotatekv4")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, rotatekv2, "rotatekv2")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, turboquant4, "turboquant4")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, turboquant3, "turboquant3")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, turboquant2, "turboquant2")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, kvquant4, "kvquant4")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, kvquant3, "kvquant3")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, kvquant2, "kvquant2")->Apply(DraftShapes);
BENCHMARK_CAPTURE(Ours, split, "split")->Apply(DraftShapes);

}  // namespace
}  // namespace vericache

BENCHMARK_MAIN();
