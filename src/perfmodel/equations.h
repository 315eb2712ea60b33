// The throughput model of arXiv 2605.17613, equations (3) and (4), and what follows from it.
#pragma once

#include <optional>

#include "perfmodel/acceptance_model.h"
#include "perfmodel/profiles.h"
#include "scheduler/policy.h"

namespace vericache {

// FLOPs of one row: two per weight, and four per query head, channel and cached token.
double RowFlops(const ModelShape& model, double cached_tokens);

// What is served, how.
struct Workload {
  Bytes full_cache;          // of one request, KV_full
  double compression = 0.2;  // c: bytes of a compressed cache over those of a full one
  int draft_length = 25;     // x
};

// The time of an iteration. The paper's T_gpu and T_xfer, and, where a device is not rich in it,
// the time of the computation, which the paper leaves out.
struct IterationTime {
  double gpu = 0.0;      // (M + B KV_full (c + 1/x)) / BW_hbm
  double xfer = 0.0;     // B KV_full / (x BW_inter)
  double compute = 0.0;  // FLOPs over the peak
  bool in_turn = false;  // gpu is attention alone then, and compute all else
  double busy() const { return in_turn ? gpu + compute : gpu; }
  double iter() const;  // the largest: they run at the same time, but for gpu and compute in turn
};

// Equation (3) for the policy vericache; for full and lossy the same without verifies and reloads.
// `batch` requests, all decoding.
IterationTime PredictIteration(Policy policy, const DeviceProfile& device, const ModelShape& model,
                               const Workload& workload, double batch);

// Tokens that a request emits per iteration: (accepted + 1) / (x + 1), since a round takes x draft
// iterations and the one that verifies. (The paper's 1 + gamma x / (x + 1) counts a token for every
// iteration and the accepted drafts again.)
double TokensPerIteration(Policy policy, const AcceptanceModel& acceptance, int draft_length);

// The compression ratio at which T_gpu = T_xfer: (rho - 1) / x - M / (B KV_full). Below it the link
// binds, above it fast memory does. May be negative (fast memory binds always) or above 1.
// (The review's 1 / rho - 1 / x - M / (B KV_full) does not solve T_gpu = T_xfer, and its two cases
// are the wrong way round.)
double CriticalRatio(const DeviceProfile& device, const ModelShape& model, const Workload& workload,
                     double batch);

// The largest useful batch, and what limits it.
struct BatchLimit {
  int batch = 0;  // 0: not even one request fits
  int by_memory = 0;
  std::optional<int> by_link;  // beyond it only the link's queue grows; nullopt: never binds
};

// By memory: weights, `batch` caches (full ones under full, else compressed) and, under vericache,
// the full caches that are in fast memory around verifies: on average each request's for l + 1 of
// every x + 1 iterations, where l is what its reload takes; at least one.
BatchLimit LargestBatch(Policy policy, const DeviceProfile& device, const ModelShape& model,
                        const Workload& workload);

struct Throughput {
  double batch = 0.0;
  BatchLimit limit;
  IterationTime time;
  double tokens_per_s = 0.0;  // of the whole batch
};

// `batch` nullopt: the largest useful one.
Throughput PredictThroughput(Policy policy, const DeviceProfile& device, const ModelShape& model,
                             const Workload& workload, const AcceptanceModel& acceptance,
                             std::optional<int> batch);

// The draft length in [1, most] with the highest predicted throughput of vericache.
int BestDraftLengthFor(const DeviceProfile& device, const ModelShape& model, Workload workload,
                       const AcceptanceModel& acceptance, std::optional<int> batch, int most);

// Remote prefix caching, equation (4): a far device drafts on the compressed cache, a device near
// the store verifies on the full one.
struct RemoteRequest {
  double startup = 0.0;  // c KV_full / BW_l
  double cycles = 0.0;   // K / (accepted + 1): draft-verify cycles for K tokens
  double decode = 0.0;   // of one draft iteration, T_decode
  double reload = 0.0;   // KV_full / BW_h
  double forward = 0.0;  // T_fwd(x): the verify's own
  double total = 0.0;    // startup + cycles max(x T_decode, reload + forward)
  double full = 0.0;     // the same request with the full cache over the far link, no verifies
  // Far devices that one near device can verify for, closed form: both pools take a request in the
  // same time when G_R / G_L = (startup + cycles x T_decode) / (cycles (reload + forward)).
  double devices_ratio = 0.0;
};

// `batch` requests share each far device; `tokens` are emitted by each.
RemoteRequest PredictRemote(const DeviceProfile& device, const ModelShape& model,
                            const Workload& workload, const AcceptanceModel& acceptance,
                            double batch, int tokens);

}  // namespace vericache
