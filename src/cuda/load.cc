// Opens the library that holds the kernels, on first use.
#include <dlfcn.h>

#include <array>
#include <string>

#include <fmt/format.h>

#include "src/cuda/cuda_api.h"

namespace shoal::cuda {
namespace {

Status no_cuda(const std::string& why) { return {StatusCode::unsupported, fmt::format("CUDA: {}", why)}; }

/// The folder of the library or program that holds this function: searched first, then the loader's own path.
std::string cuda_library_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&load_cuda_api), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

Result<CudaApi*> open_cuda_library() {
  constexpr const char* kName = "libshoal_cuda.so";
  std::array<char, 512> message{};
  // A program's own CudaApi takes precedence, such as the fake one of tests.
  if (auto own = reinterpret_cast<CudaApiEntry>(::dlsym(RTLD_DEFAULT, kCudaApiEntryName)); own != nullptr) {
    CudaApi* api = own(kCudaApiVersion, message.data(), message.size());
    if (api == nullptr) return no_cuda(message.data());
    return api;
  }
  const std::string folder = cuda_library_folder();
  void* library = nullptr;
  for (const std::string& path : {folder + kName, folder + "../lib/" + kName, std::string(kName)}) {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    const char* error = ::dlerror();
    return no_cuda(
        fmt::format("{} cannot be opened ({}); build shoal with nvcc to have it", kName, error ? error : "no reason given"));
  }
  auto entry = reinterpret_cast<CudaApiEntry>(::dlsym(library, kCudaApiEntryName));
  if (entry == nullptr)
    return no_cuda(fmt::format("{} has no {}: it is of another version of shoal", kName, kCudaApiEntryName));
  CudaApi* api = entry(kCudaApiVersion, message.data(), message.size());
  if (api == nullptr) return no_cuda(message.data());
  return api;
}

}  // namespace

Result<CudaApi*> load_cuda_api() {
  static const Result<CudaApi*> api = open_cuda_library();
  return api;
}

}  // namespace shoal::cuda
