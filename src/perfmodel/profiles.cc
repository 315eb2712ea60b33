#include "perfmodel/profiles.h"

#include <array>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace vericache {
namespace {

constexpr std::uint64_t kGiga = 1'000'000'000;

// Memory, bandwidths and dense BF16 peaks as the vendor's data sheets say; the workstation card's
// bandwidth as arXiv 2605.17613 takes it.
std::array<DeviceProfile, 4> KnownDevices() {
  return {{{.name = "rtx-pro-6000",
            .memory = {96 * kGiga},
            .memory_bandwidth = 1.6e12,
            .link_bandwidth = 64e9,
            .flops = 5.0e14},
           {.name = "h100-nvl",
            .memory = {94 * kGiga},
            .memory_bandwidth = 3.9e12,
            .link_bandwidth = 64e9,
            .flops = 8.35e14},
           // Two with tensor parallelism: everything twice, the links too.
           {.name = "2xh100-nvl",
            .memory = {188 * kGiga},
            .memory_bandwidth = 7.8e12,
            .link_bandwidth = 128e9,
            .flops = 1.67e15},
           {.name = "gh200",
            .memory = {96 * kGiga},
            .memory_bandwidth = 4.0e12,
            .link_bandwidth = 4.0e11,
            .flops = 9.9e14}}};
}

// Shapes from the models' own config files; weights in 16 bits.
std::array<ModelShape, 5> KnownModels() {
  return {{{.name = "mistral-24b",
            .weights = {47'144 * kGiga / 1000},
            .parameters = 23.57e9,
            .layers = 40,
            .heads = 32,
            .kv_heads = 8,
            .head_dim = 128},
           {.name = "qwen-32b",
            .weights = {65'524 * kGiga / 1000},
            .parameters = 32.76e9,
            .layers = 64,
            .heads = 40,
            .kv_heads = 8,
            .head_dim = 128},
           {.name = "llama-70b",
            .weights = {141'107 * kGiga / 1000},
            .parameters = 70.55e9,
            .layers = 80,
            .heads = 64,
            .kv_heads = 8,
            .head_dim = 128},
           {.name = "qwen-14b",
            .weights = {29'536 * kGiga / 1000},
            .parameters = 14.77e9,
            .layers = 40,
            .heads = 40,
            .kv_heads = 8,
            .head_dim = 128},
           {.name = "qwen-8b",
            .weights = {16'381 * kGiga / 1000},
            .parameters = 8.19e9,
            .layers = 36,
            .heads = 32,
            .kv_heads = 8,
            .head_dim = 128}}};
}

template <typename Known>
std::string Names(const Known& known) {
  std::string names;
  for (const auto& each : known) {
    names += (names.empty() ? "" : ", ") + each.name;
  }
  return names;
}

// The first of `keys` that the object has; they are alternatives.
double Number(const nlohmann::json& object, const std::string& file,
              std::initializer_list<const char*> keys, double otherwise) {
  for (const char* key : keys) {
    if (object.contains(key) && object[key].is_number() && object[key].get<double>() > 0.0) {
      return object[key].get<double>();
    }
  }
  if (otherwise <= 0.0) {
    throw UserError(file + ": needs a positive number \"" + *keys.begin() + "\"");
  }
  return otherwise;
}

DeviceProfile ReadDevice(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json object = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw UserError(path + ": not a JSON object");
  }
  DeviceProfile device;
  device.name = object.contains("name") && object["name"].is_string()
                    ? object["name"].get<std::string>()
                    : std::filesystem::path(path).stem().string();
  device.memory = {static_cast<std::uint64_t>(Number(object, path, {"memory_bytes"}, 0.0))};
  device.memory_bandwidth =
      Number(object, path, {"memory_bandwidth", "read_bandwidth_bytes_per_s"}, 0.0);
  device.flops = Number(object, path, {"flops", "product_flops_per_s"}, 0.0);
  device.link_bandwidth = Number(object, path, {"link_bandwidth"}, device.memory_bandwidth);
  device.near_bandwidth = Number(object, path, {"near_bandwidth"}, device.near_bandwidth);
  device.far_bandwidth = Number(object, path, {"far_bandwidth"}, device.far_bandwidth);
  if (object.contains("draft_cache_bandwidth")) {
    device.draft_cache_bandwidth = Number(object, path, {"draft_cache_bandwidth"}, 0.0);
    device.verify_cache_bandwidth = Number(object, path, {"verify_cache_bandwidth"}, 0.0);
    device.iteration_s = Number(object, path, {"iteration_s"}, 1e-9);
  }
  return device;
}

}  // namespace

DeviceProfile FindDevice(const std::string& name_or_file) {
  for (const DeviceProfile& device : KnownDevices()) {
    if (device.name == name_or_file) {
      return device;
    }
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(name_or_file, ignored)) {
    return ReadDevice(name_or_file);
  }
  throw UserError("unknown device '" + name_or_file + "'; known are " + Names(KnownDevices()) +
                  ", or a JSON file such as doctor --json prints");
}

ModelShape FindModelShape(const std::string& name) {
  for (const ModelShape& shape : KnownModels()) {
    if (shape.name == name) {
      return shape;
    }
  }
  throw UserError("unknown model shape '" + name + "'; known are " + Names(KnownModels()));
}

}  // namespace vericache
