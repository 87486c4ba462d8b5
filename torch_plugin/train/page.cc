#include "torch_plugin/train/page.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <unistd.h>

namespace shoal::train {

int make_page(const std::vector<std::string>& arguments) {
  // The Python that torch came with has matplotlib; the other one may have it.
  for (const std::string python : {SHOAL_TRAIN_PYTHON, "python3"}) {
    std::vector<std::string> words{python, SHOAL_TRAIN_PAGE_SCRIPT};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execvp(pointers[0], pointers.data());
  }
  std::fprintf(stderr, "shoal_train: report: python3 cannot be started: %s\n", std::strerror(errno));
  return 1;
}

}  // namespace shoal::train
