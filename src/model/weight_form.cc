#include "model/weight_form.h"

#include "ggml-cpu.h"
#include "model/ggml_handles.h"

namespace vericache {
namespace {

// Whether the CPU backend multiplies such a matrix where it is held in such a buffer.
bool Multiplies(ggml_backend_dev_t device, ggml_backend_buffer_type_t buffers, ggml_type type,
                std::int64_t in, std::int64_t out) {
  const GgmlContext context(
      ggml_init({.mem_size = 4 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  ggml_tensor* matrix = ggml_new_tensor_2d(context.get(), type, in, out);
  ggml_tensor* rows = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, in, 1);
  const GgmlBuffer buffer(ggml_backend_buft_alloc_buffer(buffers, 0));
  matrix->buffer = buffer.get();
  return ggml_backend_dev_supports_op(device, ggml_mul_mat(context.get(), matrix, rows));
}

}  // namespace

std::string Name(const WeightForm& form) {
  if (!form.as) {
    return form.packed ? "packed" : "as-is";
  }
  return std::string(ggml_type_name(*form.as)) + (form.packed ? "-packed" : "");
}

std::optional<WeightForm> ParseWeightForm(const std::string& name) {
  for (const WeightForm& form : kWeightForms) {
    if (Name(form) == name) {
      return form;
    }
  }
  return std::nullopt;
}

ggml_backend_buffer_type_t PackingFor(ggml_type type, std::int64_t in, std::int64_t out) {
  ggml_backend_reg_t cpu = ggml_backend_cpu_reg();
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(cpu, 0);
  const auto extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(cpu, "ggml_backend_dev_get_extra_bufts"));
  if (extra != nullptr) {
    for (ggml_backend_buffer_type_t* each = extra(device); each != nullptr && *each != nullptr;
         ++each) {
      if (Multiplies(device, *each, type, in, out)) {
        return *each;
      }
    }
  }
  return ggml_backend_cpu_buffer_type();
}

}  // namespace vericache
