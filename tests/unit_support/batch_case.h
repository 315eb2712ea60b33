// A batch of requests with random caches and rows, computed by BatchAttention in whatever parts and
// by however many threads a test wants.
#pragma once

#include <algorithm>
#include <barrier>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "attention/batch_attention.h"
#include "kvcache/kvquant.h"
#include "unit_support/random_data.h"
#include "unit_support/rope.h"

namespace vericache::testing {

// A request whose cache holds `cached` slots, all but about `residual` of them packed, and that
// computes `rows` more.
struct RequestSpec {
  int cached = 0;
  int residual = 0;
  int rows = 1;
  std::uint32_t seed = 0;
};

struct BatchSpec {
  CacheGeometry geometry{.layers = 2, .kv_heads = 2, .head_dim = 32};
  int heads = 6;
  KvFormat tail{NumberFormat::kF16, NumberFormat::kF16};
  std::vector<KvFormat> packed;  // parts; all but the first have up to three groups
  std::vector<RequestSpec> requests;
};

// In one iteration, how many of its next rows each request computes.
using Iteration = std::vector<int>;

class Batch {
 public:
  explicit Batch(const BatchSpec& spec) : spec_(spec), pool_(Bytes{1U << 28U}) {
    const PackedFormats packed = PackedOf(spec);
    for (const RequestSpec& each : spec.requests) {
      RandomData random(each.seed);
      Request& request = requests_.emplace_back();
      request.cache =
          std::make_unique<KvCache>(pool_, PageKind::kResident, spec.geometry, spec.tail, packed);
      FillTail(*request.cache, each.cached, random);
      if (!request.cache->Pack(each.residual)) {
        requests_.clear();  // the test finds no request
        return;
      }
      FillParts(*request.cache, random);
      for (int layer = 0; layer < spec.geometry.layers; ++layer) {
        request.queries.push_back(random.Floats(Size(each.rows) * query_floats()));
        request.keys.push_back(random.Floats(Size(each.rows) * key_floats()));
        request.values.push_back(random.Floats(Size(each.rows) * key_floats()));
        request.out.emplace_back(Size(each.rows) * query_floats());
      }
    }
  }

  // Computes all rows, iteration by iteration; `padding` rows follow the last in each. Taps, if
  // any, are one per request. The results are in out().
  void Run(const AttentionKernel& kernel, const std::vector<Iteration>& iterations, int threads,
           int padding = 0, std::span<Taps* const> taps = {}) {
    BatchAttention attention(kernel, kernel, spec_.geometry, spec_.heads, threads);
    for (const Iteration& iteration : iterations) {
      std::vector<AttentionTask> tasks;
      int total = 0;
      for (std::size_t i = 0; i < requests_.size(); ++i) {
        if (iteration[i] == 0 || !requests_[i].cache->Extend(iteration[i])) {
          continue;
        }
        tasks.push_back({.cache = requests_[i].cache.get(),
                         .first_row = total,
                         .rows = iteration[i],
                         .first_position = requests_[i].done,
                         .taps = taps.empty() ? nullptr : taps[i]});
        total += iteration[i];
      }
      attention.Begin(tasks, total + padding);
      std::vector<std::vector<float>> out(Size(spec_.geometry.layers));
      RunLayers(attention, iteration, total + padding, threads, out);
      Scatter(iteration, out);
      for (const auto& layer : out) {
        padding_.insert(padding_.end(),
                        layer.begin() + static_cast<std::ptrdiff_t>(Size(total) * query_floats()),
                        layer.end());
      }
    }
  }

  // [row][head][head_dim] of one request.
  const std::vector<float>& out(std::size_t request, int layer) const {
    return requests_[request].out[Size(layer)];
  }
  const std::vector<float>& queries(std::size_t request, int layer) const {
    return requests_[request].queries[Size(layer)];
  }
  // [row][kv_head][head_dim] of one request.
  const std::vector<float>& keys(std::size_t request, int layer) const {
    return requests_[request].keys[Size(layer)];
  }
  const std::vector<float>& values(std::size_t request, int layer) const {
    return requests_[request].values[Size(layer)];
  }
  const KvCache& cache(std::size_t request) const { return *requests_[request].cache; }
  // The results of all padding rows.
  const std::vector<float>& padding() const { return padding_; }

  std::size_t query_floats() const { return Size(spec_.heads * spec_.geometry.head_dim); }
  std::size_t key_floats() const { return Size(spec_.geometry.kv_heads * spec_.geometry.head_dim); }

 private:
  struct Request {
    std::unique_ptr<KvCache> cache;
    int done = 0;
    std::vector<std::vector<float>> queries, keys, values, out;  // per layer
  };

  // The same parts in every layer, which hold the keys of KVQuant formats before RoPE.
  static PackedFormats PackedOf(const BatchSpec& spec) {
    const auto kvquant = std::make_shared<KvQuant>();
    kvquant->rope = MakeRopeTable(spec.geometry.head_dim, /*neox=*/true, 4096);
    const std::size_t layers = Size(spec.geometry.layers);
    return PackedFormats(std::vector(layers, spec.packed), KvQuantOfLayers(layers, kvquant));
  }

  void FillParts(KvCache& cache, RandomData& random) const {
    for (int layer = 0; layer < spec_.geometry.layers; ++layer) {
      for (int part = 1; part < cache.packed_parts(LayerId{layer}); ++part) {
        for (int groups = random.Below(4); groups > 0; --groups) {
          const std::size_t floats = key_floats() * Size(kGroupSlots);
          std::vector<int> positions;
          for (int i = 0; i < spec_.geometry.kv_heads * kGroupSlots; ++i) {
            positions.push_back(random.Below(4096));
          }
          if (!cache.AppendGroup(LayerId{layer}, part, random.Floats(floats), random.Floats(floats),
                                 positions)) {
            return;
          }
        }
      }
    }
  }

  // The rows of an iteration out of every request's `floats`, one after the other, then padding.
  std::vector<float> Gather(const Iteration& iteration, int layer, int rows, std::size_t row,
                            std::vector<std::vector<float>> Request::* floats) const {
    std::vector<float> gathered;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const auto from = (requests_[i].*floats)[Size(layer)].begin() +
                        static_cast<std::ptrdiff_t>(Size(requests_[i].done) * row);
      gathered.insert(gathered.end(), from,
                      from + static_cast<std::ptrdiff_t>(Size(iteration[i]) * row));
    }
    gathered.resize(Size(rows) * row, 1.0F);
    return gathered;
  }

  void RunLayers(BatchAttention& attention, const Iteration& iteration, int rows, int threads,
                 std::vector<std::vector<float>>& out) const {
    std::vector<std::vector<float>> queries;
    std::vector<std::vector<float>> keys;
    std::vector<std::vector<float>> values;
    for (int layer = 0; layer < spec_.geometry.layers; ++layer) {
      queries.push_back(Gather(iteration, layer, rows, query_floats(), &Request::queries));
      keys.push_back(Gather(iteration, layer, rows, key_floats(), &Request::keys));
      values.push_back(Gather(iteration, layer, rows, key_floats(), &Request::values));
      out[Size(layer)].assign(Size(rows) * query_floats(), std::nanf(""));
    }
    std::barrier barrier(threads);
    const auto work = [&](int thread) {
      for (int layer = 0; layer < spec_.geometry.layers; ++layer) {
        const std::size_t at = Size(layer);
        attention.Append(LayerId{layer}, queries[at].data(), keys[at].data(), values[at].data(),
                         thread, threads);
        barrier.arrive_and_wait();
        attention.Attend(LayerId{layer}, queries[at].data(), out[at].data(), thread, threads);
        barrier.arrive_and_wait();
      }
    };
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) {
      others.emplace_back(work, thread);
    }
    work(0);
  }

  void Scatter(const Iteration& iteration, const std::vector<std::vector<float>>& out) {
    for (int layer = 0; layer < spec_.geometry.layers; ++layer) {
      auto from = out[Size(layer)].begin();
      for (std::size_t i = 0; i < requests_.size(); ++i) {
        const auto count = static_cast<std::ptrdiff_t>(Size(iteration[i]) * query_floats());
        std::copy(from, from + count,
                  requests_[i].out[Size(layer)].begin() +
                      static_cast<std::ptrdiff_t>(Size(requests_[i].done) * query_floats()));
        from += count;
      }
    }
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      requests_[i].done += iteration[i];
    }
  }

  BatchSpec spec_;
  PagePool pool_;
  std::vector<Request> requests_;
  std::vector<float> padding_;
};

// All rows of all requests in one iteration.
inline std::vector<Iteration> AllAtOnce(const BatchSpec& spec) {
  Iteration iteration;
  for (const RequestSpec& request : spec.requests) {
    iteration.push_back(request.rows);
  }
  return {iteration};
}

// Any way to compute all rows: each iteration takes some of each request's next rows.
inline std::vector<Iteration> AnyPartition(const BatchSpec& spec, RandomData& random) {
  Iteration left = AllAtOnce(spec)[0];
  std::vector<Iteration> iterations;
  int sum = 1;
  while (sum > 0) {
    sum = 0;
    Iteration& iteration = iterations.emplace_back();
    for (int& rows : left) {
      const int most = random.Below(3) == 0 ? rows : std::min(rows, 3);
      iteration.push_back(random.Below(most + 1));
      rows -= iteration.back();
      sum += rows;
    }
  }
  return iterations;
}

// A batch of up to `requests` requests of any lengths, formats and head counts.
inline BatchSpec AnyBatch(RandomData& random, int requests, int longest, int most_rows) {
  constexpr NumberFormat kTails[] = {NumberFormat::kF32, NumberFormat::kF16, NumberFormat::kBF16};
  BatchSpec spec;
  spec.geometry.kv_heads = 1 + random.Below(3);
  spec.geometry.head_dim = 32 * (1 + random.Below(2));
  spec.heads = spec.geometry.kv_heads * (1 + random.Below(5));
  spec.tail = {kTails[random.Below(3)], kTails[random.Below(3)]};
  if (random.Below(2) == 0) {
    const auto any = [&random] {
      return kNumberFormats[Size(random.Below(static_cast<int>(kNumberFormats.size())))].format;
    };
    for (int parts = 1 + random.Below(3); parts > 0; --parts) {
      spec.packed.push_back({any(), any()});
    }
  }
  const int count = 1 + random.Below(requests);
  for (int i = 0; i < count; ++i) {
    spec.requests.push_back({.cached = random.Below(longest),
                             .residual = random.Below(longest),
                             .rows = 1 + random.Below(most_rows),
                             .seed = static_cast<std::uint32_t>(random.Below(1 << 30))});
  }
  return spec;
}

}  // namespace vericache::testing
