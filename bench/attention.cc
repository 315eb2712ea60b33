// Attention of one layer over one request's cache: ours, for each format, and ggml's flash
// attention on an f16 cache, on the same shape in the same run. Counters:
//   GB/s       cache bytes
//   GFLOP/s
//   of_read    GB/s over what all threads read of a buffer of as many bytes
//   over_ggml  time of ggml's flash attention over ours
//
//   build/bench/bench_attention --benchmark_filter=context:8192/dim:64/group:3/

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/batch_attention.h"
#include "base/bandwidth.h"
#include "base/clock.h"
#include "base/size.h"
#include "base/threads.h"
#include "benchmark/benchmark.h"
#include "compressor/compressor.h"
#include "ggml-backend.h"
#include "kvcache/kvquant.h"
#include "model/backend.h"
#include "model/weights.h"

namespace vericache {
namespace {

constexpr int kKvHeads = 3;
constexpr LayerId kLayer{0};

struct Shape {
  explicit Shape(const benchmark::State& state)
      : context(static_cast<int>(state.range(0))),
        dim(static_cast<int>(state.range(1))),
        group(static_cast<int>(state.range(2))),
        rows(static_cast<int>(state.range(3))) {}

  int heads() const { return kKvHeads * group; }
  double flops() const { return 4.0 * rows * context * heads() * dim; }
  auto operator<=>(const Shape&) const = default;

  int context;
  int dim;
  int group;  // query heads per KV head
  int rows;
};

std::vector<float> Random(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& x : numbers) {
    x = normal(random);
  }
  return numbers;
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
  void Build(ggml_tensor* result) {
    ggml_build_forward_expand(graph_, result);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend_.get()));
  }
  void Run() { ggml_backend_graph_compute(backend_.get(), graph_); }

 private:
  Backend backend_;
  GgmlContext context_;
  ggml_cgraph* graph_;
  GgmlBuffer buffer_;
};

// ggml's flash attention on random numbers.
class Flash {
 public:
  explicit Flash(const Shape& shape) {
    ggml_context* c = graph_.context();
    ggml_tensor* q = ggml_new_tensor_3d(c, GGML_TYPE_F32, shape.dim, shape.rows, shape.heads());
    ggml_tensor* k = ggml_new_tensor_3d(c, GGML_TYPE_F16, shape.dim, shape.context, kKvHeads);
    ggml_tensor* v = ggml_new_tensor_3d(c, GGML_TYPE_F16, shape.dim, shape.context, kKvHeads);
    ggml_tensor* mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, shape.context, shape.rows);
    const float scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
    graph_.Build(ggml_flash_attn_ext(c, q, k, v, mask, scale, 0.0F, 0.0F));
    const std::vector<float> numbers = Random(static_cast<std::size_t>(ggml_nelements(k)));
    std::vector<ggml_fp16_t> half(numbers.size());
    ggml_fp32_to_fp16_row(numbers.data(), half.data(), static_cast<std::int64_t>(half.size()));
    const std::vector<float> queries = Random(static_cast<std::size_t>(ggml_nelements(q)));
    ggml_backend_tensor_set(q, queries.data(), 0, ggml_nbytes(q));
    ggml_backend_tensor_set(k, half.data(), 0, ggml_nbytes(k));
    ggml_backend_tensor_set(v, half.data(), 0, ggml_nbytes(v));
    std::vector<ggml_fp16_t> causal(Size(shape.context) * Size(shape.rows));
    for (int row = 0; row < shape.rows; ++row) {
      for (int slot = shape.context - shape.rows + row + 1; slot < shape.context; ++slot) {
        causal[Size(row) * Size(shape.context) + Size(slot)] = ggml_fp32_to_fp16(-INFINITY);
      }
    }
    ggml_backend_tensor_set(mask, causal.data(), 0, ggml_nbytes(mask));
    bytes_ = static_cast<double>(ggml_nbytes(k) + ggml_nbytes(v));
  }

  void Run() { graph_.Run(); }
  double bytes() const { return bytes_; }

 private:
  Graph graph_;
  double bytes_ = 0.0;
};

// The best of some runs.
double FlashSeconds(const Shape& shape) {
  static std::map<Shape, double> measured;
  const auto [at, is_new] = measured.try_emplace(shape, INFINITY);
  if (is_new) {
    Flash flash(shape);
    for (int i = 0; i < 4; ++i) {
      const Clock::time_point start = Clock::now();
      flash.Run();
      at->second = std::min(at->second, SecondsSince(start));
    }
  }
  return at->second;
}

double ReadBandwidth(double bytes) {
  static std::map<double, double> measured;
  const auto [at, is_new] = measured.try_emplace(bytes);
  if (is_new) {
    at->second = MeasureReadBandwidth(HardwareThreads(), {static_cast<std::uint64_t>(bytes)});
  }
  return at->second;
}

template <class Run>
void Measure(benchmark::State& state, const Shape& shape, double bytes, const Run& run) {
  const Clock::time_point start = Clock::now();
  for (auto _ : state) {
    run();
  }
  const double seconds = SecondsSince(start) / static_cast<double>(state.iterations());
  state.counters["GB/s"] = bytes / seconds / 1e9;
  state.counters["GFLOP/s"] = shape.flops() / seconds / 1e9;
  state.counters["of_read"] = bytes / seconds / ReadBandwidth(bytes);
  state.counters["over_ggml"] = FlashSeconds(shape) / seconds;
}

void GgmlFlash(benchmark::State& state) {
  const Shape shape(state);
  Flash flash(shape);
  Measure(state, shape, flash.bytes(), [&] { flash.Run(); });
}

// KVQuant's keys are rotated by what a table says; what it says takes no other time.
std::shared_ptr<const KvQuant> WithRope(const Shape& shape) {
  const std::size_t pairs = Size(shape.dim) / 2;
  const std::size_t coarse = pairs * Size(shape.context / RopeTable::kStep + 1);
  const std::size_t fine = pairs * RopeTable::kFine;
  const auto kvquant = std::make_shared<KvQuant>();
  kvquant->rope = std::make_shared<const RopeTable>(
      shape.dim, /*neox=*/true,
      RopeTable::Angles{std::vector<float>(coarse, 1.0F), std::vector<float>(coarse)},
      RopeTable::Angles{std::vector<float>(fine, 1.0F), std::vector<float>(fine)});
  return kvquant;
}

// Ours, of a cache that a compressor made of a full one of the format `tail`.
void Ours(benchmark::State& state, const std::string& compressor_name, KvFormat tail) {
  const Shape shape(state);
  const CacheGeometry geometry = {.layers = 1, .kv_heads = kKvHeads, .head_dim = shape.dim};
  const bool drafts = compressor_name != "none";
  PagePool pool({std::uint64_t{1} << 33U});
  KvCache full(pool, PageKind::kResident, geometry, tail);
  const bool fits = full.Extend(shape.context);
  const std::vector<float> numbers = Random(Size(shape.dim));
  for (int slot = 0; fits && slot < shape.context; ++slot) {
    for (int head = 0; head < kKvHeads; ++head) {
      full.Write(kLayer, slot, head, numbers, numbers);
    }
  }
  Compressor compressor = MakeCompressor(compressor_name);
  if (compressor.IsKvQuant()) {
    compressor.kvquant = {WithRope(shape)};
  }
  KvCache cache =
      drafts
          ? Compress(compressor, {.full = full, .positions = shape.context, .heads = shape.heads()},
                     1.0, pool)
          : std::move(full);
  if (!fits || !cache.Extend(shape.rows)) {
    state.SkipWithError("no memory");
    return;
  }
  BatchAttention attention(SelectKernel(), SelectDraftKernel(), geometry, shape.heads(),
                           HardwareThreads());
  const AttentionTask task{.cache = &cache,
                           .first_row = 0,
                           .rows = shape.rows,
                           .first_position = 0,
                           .use = drafts ? AttentionUse::kDraft : AttentionUse::kFull};
  attention.Begin({&task, 1}, shape.rows);

  Graph graph;
  ggml_tensor* q =
      ggml_new_tensor_3d(graph.context(), GGML_TYPE_F32, shape.dim, shape.heads(), shape.rows);
  ggml_tensor* kv =
      ggml_new_tensor_3d(graph.context(), GGML_TYPE_F32, shape.dim, kKvHeads, shape.rows);
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
      graph.context(), GGML_TYPE_F32, static_cast<std::int64_t>(shape.dim) * shape.heads(),
      shape.rows, 1, 1, arguments.data(), 2,
      [](ggml_tensor* dst, int thread, int threads, void* user) {
        static_cast<BatchAttention*>(user)->Attend(kLayer,
                                                   static_cast<const float*>(dst->src[0]->data),
                                                   static_cast<float*>(dst->data), thread, threads);
      },
      GGML_N_TASKS_MAX, &attention));
  const std::vector<float> queries =
      Random(Size(shape.dim) * Size(shape.heads()) * Size(shape.rows));
  ggml_backend_tensor_set(q, queries.data(), 0, ggml_nbytes(q));
  ggml_backend_tensor_set(kv, queries.data(), 0, ggml_nbytes(kv));
  Measure(state, shape, static_cast<double>(cache.bytes().count), [&] { graph.Run(); });
}

// One row: decode or draft; a few: verify; many: prefill. On a compressed cache there are only
// drafts.
void Shapes(benchmark::internal::Benchmark* benchmark, const std::vector<std::int64_t>& rows) {
  benchmark->ArgNames({"context", "dim", "group", "rows"})
      ->ArgsProduct({{512, 2048, 8192, 32768}, {64, 128}, {1, 3, 4, 8}, rows})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void Register() {
  const std::vector<std::int64_t> all = {1, 8, 26, 64, 512};
  Shapes(benchmark::RegisterBenchmark("GgmlFlash", GgmlFlash), all);
  for (const NumberFormat plain : {NumberFormat::kF32, NumberFormat::kF16, NumberFormat::kBF16}) {
    const std::string name = "Ours/" + std::string(Name(plain));
    Shapes(benchmark::RegisterBenchmark(name.c_str(), Ours, "none", KvFormat{plain, plain}), all);
  }
  for (const FormatTraits& format : kNumberFormats) {
    if (IsGrouped(format.format)) {
      const std::string name(format.name);
      Shapes(benchmark::RegisterBenchmark(("Ours/" + name).c_str(), Ours, name, KvFormat{}), {1});
    }
  }
  Shapes(benchmark::RegisterBenchmark("Ours/split", Ours, "split", KvFormat{}), {1});
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) {
  vericache::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
