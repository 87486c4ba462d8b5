# Finds LibTorch in a Python wheel and makes the targets shoal::libtorch (C++ only) and shoal::libtorch_python (what an
# extension module links besides). Sets SHOAL_LIBTORCH_FOUND, or SHOAL_LIBTORCH_WHY_NOT to one line.
#
# Not find_package(Torch): with a CUDA wheel that needs nvcc, of exactly the toolkit's version, only to hand out libraries that
# a plugin for CPU tensors does not use. The wheel's include and lib folders are all there is to it, and without libtorch_cuda a
# program starts in a fraction of the time.

set(SHOAL_TORCH_VERSION "2.11.0" CACHE STRING "Version in the name of the cached environment, venv-torch-<version>")
set(SHOAL_LIBTORCH_FOUND FALSE)
set(SHOAL_LIBTORCH_WHY_NOT "")

if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(_cache_home "$ENV{XDG_CACHE_HOME}")
else()
  set(_cache_home "$ENV{HOME}/.cache")
endif()
set(_cached_venv "${_cache_home}/shoal/venv-torch-${SHOAL_TORCH_VERSION}")

# Every place that can hold a torch package folder, the user's own words first; pip's Python where a wheel is built.
set(_candidates "")
if(SKBUILD)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import importlib.util as u; print(*u.find_spec('torch').submodule_search_locations)"
    OUTPUT_VARIABLE _candidates OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(Torch_DIR)
  cmake_path(SET _folder NORMALIZE "${Torch_DIR}/../../..")  # <torch>/share/cmake/Torch
  list(APPEND _candidates "${_folder}")
endif()
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  cmake_path(SET _folder NORMALIZE "${_prefix}/../..")  # torch.utils.cmake_prefix_path is <torch>/share/cmake
  list(APPEND _candidates "${_folder}" "${_prefix}")
endforeach()
file(GLOB _folders LIST_DIRECTORIES TRUE "${_cached_venv}/lib/python3*/site-packages/torch")
list(APPEND _candidates ${_folders})

foreach(_candidate IN LISTS _candidates)
  if(EXISTS "${_candidate}/include/torch/csrc/distributed/c10d/reducer.hpp" AND EXISTS "${_candidate}/lib/libtorch_cpu.so")
    set(SHOAL_LIBTORCH_FOUND TRUE)
    cmake_path(SET SHOAL_LIBTORCH_DIR NORMALIZE "${_candidate}/.")
    string(REGEX REPLACE "/$" "" SHOAL_LIBTORCH_DIR "${SHOAL_LIBTORCH_DIR}")
    break()
  endif()
endforeach()

if(NOT SHOAL_LIBTORCH_FOUND)
  set(SHOAL_LIBTORCH_WHY_NOT "no LibTorch in ${_cached_venv}, CMAKE_PREFIX_PATH or Torch_DIR")
  return()
endif()

file(STRINGS "${SHOAL_LIBTORCH_DIR}/include/torch/headeronly/version.h" _version REGEX "TORCH_VERSION_(MAJOR|MINOR) [0-9]+$")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" SHOAL_LIBTORCH_VERSION "${_version}")
if(SHOAL_LIBTORCH_VERSION VERSION_LESS 2.11)  # the Backend's virtual functions differ before
  set(SHOAL_LIBTORCH_FOUND FALSE)
  set(SHOAL_LIBTORCH_WHY_NOT "${SHOAL_LIBTORCH_DIR} is version ${SHOAL_LIBTORCH_VERSION}; 2.11 or newer is needed")
  return()
endif()

if(NOT TARGET shoal::libtorch)
  add_library(shoal::libtorch INTERFACE IMPORTED GLOBAL)
  target_include_directories(shoal::libtorch SYSTEM INTERFACE "${SHOAL_LIBTORCH_DIR}/include"
                                                            "${SHOAL_LIBTORCH_DIR}/include/torch/csrc/api/include")
  target_link_libraries(shoal::libtorch INTERFACE "${SHOAL_LIBTORCH_DIR}/lib/libtorch_cpu.so"
                                                  "${SHOAL_LIBTORCH_DIR}/lib/libc10.so")
  # What libtorch_cpu itself needs is found by its run path, which the linker does not follow.
  target_link_options(shoal::libtorch INTERFACE -Wl,--allow-shlib-undefined)

  add_library(shoal::libtorch_python INTERFACE IMPORTED GLOBAL)
  target_link_libraries(shoal::libtorch_python INTERFACE shoal::libtorch "${SHOAL_LIBTORCH_DIR}/lib/libtorch_python.so")
endif()

# The interpreter that owns this torch: <prefix>/lib/python3.N/site-packages/torch, <prefix>/bin/python.
cmake_path(SET _prefix NORMALIZE "${SHOAL_LIBTORCH_DIR}/../../../..")
if(SKBUILD)
  set(SHOAL_TORCH_PYTHON "${Python_EXECUTABLE}")
endif()
find_program(SHOAL_TORCH_PYTHON NAMES python python3 HINTS "${_prefix}/bin" NO_DEFAULT_PATH)
