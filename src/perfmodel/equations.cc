#include "perfmodel/equations.h"

#include <algorithm>
#include <cmath>

namespace vericache {
namespace {

// `rows` rows on the full cache and `drafts` on the compressed one.
double Flops(const ModelShape& model, const Workload& workload, double rows, double drafts) {
  const double tokens = model.kv_per_token().count == 0
                            ? 0.0
                            : Count(workload.full_cache) / Count(model.kv_per_token());
  return rows * RowFlops(model, tokens) + drafts * RowFlops(model, workload.compression * tokens);
}

}  // namespace

double RowFlops(const ModelShape& model, double cached_tokens) {
  return 2.0 * model.parameters + 4.0 * model.layers * model.heads * model.head_dim * cached_tokens;
}

double IterationTime::iter() const { return std::max({busy(), xfer, compute}); }

IterationTime PredictIteration(Policy policy, const DeviceProfile& device, const ModelShape& model,
                               const Workload& workload, double batch) {
  const double weights = Count(model.weights);
  const double full = batch * Count(workload.full_cache);
  const double x = workload.draft_length;
  IterationTime time;
  if (device.in_turn()) {
    const bool verifies = Verifies(policy);
    const double cached = policy == Policy::kFull ? 1.0 : workload.compression;
    const double drafts = verifies ? batch * x / (x + 1.0) : batch;
    const double verifies_s = full / ((x + 1.0) * device.verify_cache_bandwidth);
    time.in_turn = true;
    time.gpu = drafts * cached * Count(workload.full_cache) / device.draft_cache_bandwidth +
               (verifies ? verifies_s : 0.0);
    time.xfer = verifies ? full / (x * device.link_bandwidth) : 0.0;
    // A verify has x + 1 rows, in one of x + 1 iterations.
    time.compute = device.iteration_s +
                   (drafts + (verifies ? batch : 0.0)) * 2.0 * model.parameters / device.flops;
    return time;
  }
  switch (policy) {
    case Policy::kFull:
      time.gpu = (weights + full) / device.memory_bandwidth;
      time.compute = Flops(model, workload, batch, 0.0) / device.flops;
      break;
    case Policy::kLossy:
      time.gpu = (weights + workload.compression * full) / device.memory_bandwidth;
      time.compute = Flops(model, workload, 0.0, batch) / device.flops;
      break;
    case Policy::kVeriCache:
    case Policy::kLockstep:
    case Policy::kAuto:
      time.gpu = (weights + full * (workload.compression + 1.0 / x)) / device.memory_bandwidth;
      time.xfer = full / (x * device.link_bandwidth);
      // x drafted rows and x + 1 verified ones in x + 1 iterations.
      time.compute = Flops(model, workload, batch, batch * x / (x + 1.0)) / device.flops;
      break;
  }
  return time;
}

double TokensPerIteration(Policy policy, const AcceptanceModel& acceptance, int draft_length) {
  if (!Verifies(policy)) {
    return 1.0;
  }
  return (acceptance.Accepted(draft_length) + 1.0) / (draft_length + 1.0);
}

double CriticalRatio(const DeviceProfile& device, const ModelShape& model, const Workload& workload,
                     double batch) {
  // T_gpu grows evenly with the ratio.
  const auto at = [&](double ratio) {
    Workload other = workload;
    other.compression = ratio;
    return PredictIteration(Policy::kVeriCache, device, model, other, batch);
  };
  const IterationTime none = at(0.0);
  return (none.xfer - none.busy()) / (at(1.0).busy() - none.busy());
}

BatchLimit LargestBatch(Policy policy, const DeviceProfile& device, const ModelShape& model,
                        const Workload& workload) {
  const double room = Count(device.memory) - Count(model.weights);
  const double full = Count(workload.full_cache);
  const double held = policy == Policy::kFull ? full : workload.compression * full;
  const double x = workload.draft_length;
  BatchLimit limit;
  if (!Verifies(policy)) {
    limit.by_memory = std::max(0, static_cast<int>(room / held));
    limit.batch = limit.by_memory;
    return limit;
  }
  const auto fits = [&](int batch) {
    double transient = batch;  // lockstep: all at once
    if (policy != Policy::kLockstep) {
      const double reload = full / device.link_bandwidth /
                            PredictIteration(policy, device, model, workload, batch).iter();
      transient = std::clamp(std::ceil(batch * (reload + 1.0) / (x + 1.0)), 1.0,
                             static_cast<double>(batch));
    }
    return batch * held + transient * full <= room;
  };
  while (fits(limit.by_memory + 1)) {
    ++limit.by_memory;
  }
  limit.batch = limit.by_memory;
  // T_xfer <= T_gpu, both of which grow evenly with the batch: B KV (1 / (x BW_inter) - (c + 1/x) /
  // BW_hbm) <= M / BW_hbm.
  const IterationTime none = PredictIteration(policy, device, model, workload, 0.0);
  const IterationTime one = PredictIteration(policy, device, model, workload, 1.0);
  const double excess = one.xfer - (one.busy() - none.busy());
  if (excess > 0.0) {
    limit.by_link = std::max(1, static_cast<int>(none.busy() / excess));
    limit.batch = std::min(limit.batch, *limit.by_link);
  }
  return limit;
}

Throughput PredictThroughput(Policy policy, const DeviceProfile& device, const ModelShape& model,
                             const Workload& workload, const AcceptanceModel& acceptance,
                             std::optional<int> batch) {
  Throughput result;
  result.limit = LargestBatch(policy, device, model, workload);
  result.batch = batch.value_or(result.limit.batch);
  if (result.batch <= 0.0) {
    return result;
  }
  result.time = PredictIteration(policy, device, model, workload, result.batch);
  result.tokens_per_s = result.batch *
                        TokensPerIteration(policy, acceptance, workload.draft_length) /
                        result.time.iter();
  return result;
}

int BestDraftLengthFor(const DeviceProfile& device, const ModelShape& model, Workload workload,
                       const AcceptanceModel& acceptance, std::optional<int> batch, int most) {
  int best = 1;
  double best_speed = -1.0;
  for (int x = 1; x <= most; ++x) {
    workload.draft_length = x;
    const double speed =
        PredictThroughput(Policy::kVeriCache, device, model, workload, acceptance, batch)
            .tokens_per_s;
    if (speed > best_speed) {
      best = x;
      best_speed = speed;
    }
  }
  return best;
}

RemoteRequest PredictRemote(const DeviceProfile& device, const ModelShape& model,
                            const Workload& workload, const AcceptanceModel& acceptance,
                            double batch, int tokens) {
  const double x = workload.draft_length;
  RemoteRequest request;
  request.startup = workload.compression * Count(workload.full_cache) / device.far_bandwidth;
  request.cycles = tokens / (acceptance.Accepted(workload.draft_length) + 1.0);
  request.decode = PredictIteration(Policy::kLossy, device, model, workload, batch).iter();
  request.reload = Count(workload.full_cache) / device.near_bandwidth;
  request.forward =
      std::max((Count(model.weights) + Count(workload.full_cache)) / device.memory_bandwidth,
               Flops(model, workload, x + 1.0, 0.0) / device.flops);
  const double draft = x * request.decode;
  const double verify = request.reload + request.forward;
  request.total = request.startup + request.cycles * std::max(draft, verify);
  request.full = Count(workload.full_cache) / device.far_bandwidth +
                 tokens * PredictIteration(Policy::kFull, device, model, workload, batch).iter();
  request.devices_ratio = (request.startup + request.cycles * draft) / (request.cycles * verify);
  return request;
}

}  // namespace vericache
