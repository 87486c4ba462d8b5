#include "bench/train/data/dataset.h"

#include <cerrno>
#include <cstring>

#include <zlib.h>

namespace shoal::data {

Result<std::string> read_file(const std::string& path, std::size_t limit_bytes) {
  errno = 0;
  gzFile file = gzopen(path.c_str(), "rb");  // reads plain files as they are
  if (file == nullptr) {
    if (errno == ENOENT) return Status(StatusCode::not_found, path + ": no such file");
    return system_error("open " + path, errno);
  }
  std::string content;
  char block[64 * 1024];
  Status failure;
  while (true) {
    const int got = gzread(file, block, sizeof block);
    if (got > 0 && content.size() + static_cast<std::size_t>(got) > limit_bytes) {
      failure =
          Status(StatusCode::invalid_argument, path + ": larger than the limit of " + std::to_string(limit_bytes) + " bytes");
      break;
    }
    if (got > 0) content.append(block, static_cast<std::size_t>(got));
    if (got == static_cast<int>(sizeof block)) continue;
    int code = Z_OK;
    const std::string words = gzerror(file, &code);
    if (code == Z_BUF_ERROR)
      failure = Status(StatusCode::system_error, path + ": truncated");
    else if (code == Z_ERRNO)
      failure = system_error("read " + path, errno);
    else if (code < 0)
      failure = Status(StatusCode::system_error, path + ": corrupt: " + words);
    if (!failure.ok() || got <= 0) break;
  }
  gzclose(file);
  if (!failure.ok()) return failure;
  return content;
}

}  // namespace shoal::data
