#include "cli/picture.h"

#include <librsvg/rsvg.h>

#include <filesystem>
#include <memory>

#include "base/check.h"
#include "base/error.h"

namespace vericache {
namespace {

constexpr double kDotsPerInch = 192.0;  // twice what an SVG's units are made for

struct Unref {
  void operator()(RsvgHandle* handle) const { g_object_unref(handle); }
  void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
  void operator()(cairo_t* cairo) const { cairo_destroy(cairo); }
};

cairo_status_t Append(void* bytes, const unsigned char* data, unsigned int size) {
  static_cast<std::string*>(bytes)->append(reinterpret_cast<const char*>(data), size);
  return CAIRO_STATUS_SUCCESS;
}

std::string Png(const std::string& svg) {
  const std::unique_ptr<RsvgHandle, Unref> handle(rsvg_handle_new_from_data(
      reinterpret_cast<const guint8*>(svg.data()), svg.size(), /*error=*/nullptr));
  if (!handle) {
    throw UserError("the picture has a name in it that is no text, so it cannot be drawn");
  }
  rsvg_handle_set_dpi(handle.get(), kDotsPerInch);
  RsvgRectangle place{};
  gboolean has_width = 0;
  gboolean has_height = 0;
  RsvgLength width{};
  RsvgLength height{};
  rsvg_handle_get_intrinsic_dimensions(handle.get(), &has_width, &width, &has_height, &height,
                                       /*out_has_viewbox=*/nullptr, /*out_viewbox=*/nullptr);
  Check(has_width != 0 && has_height != 0, "our pictures have a size");
  constexpr double kScale = kDotsPerInch / 96.0;
  place.width = kScale * width.length;
  place.height = kScale * height.length;
  const std::unique_ptr<cairo_surface_t, Unref> surface(cairo_image_surface_create(
      CAIRO_FORMAT_RGB24, static_cast<int>(place.width), static_cast<int>(place.height)));
  const std::unique_ptr<cairo_t, Unref> cairo(cairo_create(surface.get()));
  Check(rsvg_handle_render_document(handle.get(), cairo.get(), &place, /*error=*/nullptr) != 0,
        "our pictures can be drawn");
  std::string png;
  const cairo_status_t status = cairo_surface_write_to_png_stream(surface.get(), Append, &png);
  Check(status == CAIRO_STATUS_SUCCESS, "memory for a picture");
  return png;
}

bool IsPng(const std::string& path) {
  const std::string end = std::filesystem::path(path).extension().string();
  if (!end.empty() && end != ".svg" && end != ".png") {
    throw UserError(path + ": a picture is an SVG or a PNG; let its name end in .svg or .png");
  }
  return end == ".png";
}

}  // namespace

PictureFile::PictureFile(const std::string& path) : png_(IsPng(path)), file_(path) {}

void PictureFile::Finish(const std::string& svg) { file_.Finish(png_ ? Png(svg) : svg); }

}  // namespace vericache
