// Open MPI (or another MPI) as a peer of shoal_perf. Works only in processes started by mpirun.
#include <dlfcn.h>
#include <mpi.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <shoal/types.h>

#include "bench/perf/peer.h"

namespace {

using shoal::CollectiveKind;
using shoal::DataType;
using shoal::ReduceOp;

/// An algorithm of Open MPI's component `tuned`, and a communicator that was made while the algorithm was forced.
struct Variant {
  std::string name;
  MPI_Comm communicator = MPI_COMM_NULL;
};

struct State {
  std::vector<Variant> variants;
  std::size_t current = 0;
  int rank = 0;
  std::string version;
  std::string error;
  bool initialised_here = false;
};

State& state() {
  static State instance;
  return instance;
}

MPI_Comm communicator() { return state().variants[state().current].communicator; }

int fail(std::string message) {
  state().error = std::move(message);
  return 1;
}

int outcome(int code) {
  if (code == MPI_SUCCESS) return 0;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return fail(std::string(text, static_cast<std::size_t>(length)));
}

MPI_Datatype mpi_type(int type) {
  switch (static_cast<DataType>(type)) {
    case DataType::float32:
      return MPI_FLOAT;
    case DataType::float64:
      return MPI_DOUBLE;
    case DataType::int8:
      return MPI_INT8_T;
    case DataType::int16:
      return MPI_INT16_T;
    case DataType::int32:
      return MPI_INT32_T;
    case DataType::int64:
      return MPI_INT64_T;
    case DataType::uint8:
      return MPI_UINT8_T;
    case DataType::uint16:
      return MPI_UINT16_T;
    case DataType::uint32:
      return MPI_UINT32_T;
    case DataType::uint64:
      return MPI_UINT64_T;
    case DataType::float16:
    case DataType::bfloat16:
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      return MPI_DATATYPE_NULL;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(int op) {
  switch (static_cast<ReduceOp>(op)) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::prod:
      return MPI_PROD;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::band:
      return MPI_BAND;
    case ReduceOp::bor:
      return MPI_BOR;
    case ReduceOp::bxor:
      return MPI_BXOR;
    case ReduceOp::avg:
      return MPI_OP_NULL;
  }
  return MPI_OP_NULL;
}

/// Sets an integer control variable of the library; false if there is none of that name.
bool write_control_variable(const char* name, int value) {
  int variables = 0;
  if (MPI_T_cvar_get_num(&variables) != MPI_SUCCESS) return false;
  for (int i = 0; i < variables; ++i) {
    char found[256] = "";
    int found_length = sizeof found;
    int description_length = 0;
    int verbosity = 0;
    int binding = 0;
    int scope = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_T_enum enumeration = MPI_T_ENUM_NULL;
    if (MPI_T_cvar_get_info(i, found, &found_length, &verbosity, &type, &enumeration, nullptr, &description_length, &binding,
                            &scope) != MPI_SUCCESS ||
        std::strcmp(found, name) != 0) {
      continue;
    }
    MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
    int count = 0;
    if (MPI_T_cvar_handle_alloc(i, nullptr, &handle, &count) != MPI_SUCCESS) return false;
    const bool written = MPI_T_cvar_write(handle, &value) == MPI_SUCCESS;
    MPI_T_cvar_handle_free(&handle);
    return written;
  }
  return false;
}

/// A communicator with MPI ranks in shoal's order. Open MPI reads the forced algorithm when it makes a communicator.
bool add_variant(const char* name, int rank) {
  Variant variant{name, MPI_COMM_NULL};
  if (MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &variant.communicator) != MPI_SUCCESS) return false;
  MPI_Comm_set_errhandler(variant.communicator, MPI_ERRORS_RETURN);
  state().variants.push_back(std::move(variant));
  return true;
}

/// Names of the values of coll_tuned_allreduce_algorithm, by value; 0 leaves the choice to the library.
constexpr const char* kAlgorithms[] = {"default", "basic_linear",   "nonoverlapping", "recursive_doubling",
                                       "ring",    "segmented_ring", "rabenseifner"};

const char* version() { return state().version.c_str(); }

void read_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  state().version.assign(text, static_cast<std::size_t>(length));
  state().version = state().version.substr(0, state().version.find_first_of(",\n"));
}

int init(const shoal_peer_config* config) {
  const char* started_ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (started_ranks == nullptr && config->size > 1) {
    return fail("these processes were not started by mpirun; start shoal_perf with mpirun -n RANKS");
  }
  // Open MPI's own components look up symbols of libmpi globally; shoal_perf loads peers locally.
  Dl_info library{};
  if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &library) != 0)
    dlopen(library.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  // Without this variable, which Open MPI reads once, a forced algorithm is ignored; with it and no forced algorithm, the
  // choice is the usual one.
  if (config->try_all_algorithms != 0) setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 1);
  int initialised = 0;
  MPI_Initialized(&initialised);
  int provided = 0;
  if (initialised == 0) {
    if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided); code != MPI_SUCCESS)
      return outcome(code);
    state().initialised_here = true;
  }
  read_version();
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != config->size)
    return fail("mpirun started " + std::to_string(size) + " ranks, but shoal has " + std::to_string(config->size));
  if (!add_variant(kAlgorithms[0], config->rank)) return fail("MPI_Comm_split failed");
  state().rank = config->rank;
  if (config->try_all_algorithms == 0) return 0;

  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return fail("MPI_T_init_thread failed");
  for (int algorithm = 1; algorithm < static_cast<int>(std::size(kAlgorithms)); ++algorithm) {
    if (!write_control_variable("coll_tuned_allreduce_algorithm", algorithm)) {
      return fail("this MPI has no control variable coll_tuned_allreduce_algorithm; omit --openmpi-algorithms");
    }
    if (!add_variant(kAlgorithms[algorithm], config->rank)) return fail("MPI_Comm_split failed");
  }
  write_control_variable("coll_tuned_allreduce_algorithm", 0);
  return 0;
}

const char* why_unsupported(int collective, int type, int op, std::size_t count) {
  const auto kind = static_cast<CollectiveKind>(collective);
  if (kind == CollectiveKind::barrier) return nullptr;
  if (count > INT_MAX) return "counts above 2^31 - 1 do not fit into MPI's int";
  if (mpi_type(type) == MPI_DATATYPE_NULL) return "MPI has no such type";
  if (shoal::reduces(kind) && mpi_op(op) == MPI_OP_NULL) return "MPI has no such operation";
  return nullptr;
}

/// Whether `small` is this rank's share in `large`.
bool is_share_of(const void* small, const void* large, std::size_t share_bytes) {
  return small == static_cast<const std::byte*>(large) + static_cast<std::size_t>(state().rank) * share_bytes;
}

int run(const shoal_peer_call* call) {
  const int count = static_cast<int>(call->count);
  const MPI_Datatype type = mpi_type(call->type);
  const MPI_Op op = mpi_op(call->op);
  const MPI_Comm comm = communicator();
  const bool is_root = state().rank == call->root;
  const void* input = call->input;
  void* output = call->output;
  int element_bytes = 0;
  MPI_Type_size(type, &element_bytes);
  const std::size_t share_bytes = call->count * static_cast<std::size_t>(element_bytes);
  const bool input_in_output = is_share_of(input, output, share_bytes);
  const bool output_in_input = is_share_of(output, input, share_bytes);
  switch (static_cast<CollectiveKind>(call->collective)) {
    case CollectiveKind::all_reduce:
      return outcome(MPI_Allreduce(input == output ? MPI_IN_PLACE : input, output, count, type, op, comm));
    case CollectiveKind::broadcast:
      return outcome(MPI_Bcast(output, count, type, call->root, comm));
    case CollectiveKind::all_gather:
      return outcome(MPI_Allgather(input_in_output ? MPI_IN_PLACE : input, count, type, output, count, type, comm));
    case CollectiveKind::reduce_scatter:
      if (!output_in_input) return outcome(MPI_Reduce_scatter_block(input, output, count, type, op, comm));
      // In place, MPI stores the result at the start of the buffer and not at the rank's place.
      return outcome(MPI_Reduce_scatter_block(MPI_IN_PLACE, const_cast<void*>(input), count, type, op, comm));
    case CollectiveKind::reduce:
      return outcome(MPI_Reduce(is_root && input == output ? MPI_IN_PLACE : input, output, count, type, op, call->root, comm));
    case CollectiveKind::gather:
      return outcome(
          MPI_Gather(is_root && input_in_output ? MPI_IN_PLACE : input, count, type, output, count, type, call->root, comm));
    case CollectiveKind::scatter:
      return outcome(
          MPI_Scatter(input, count, type, is_root && output_in_input ? MPI_IN_PLACE : output, count, type, call->root, comm));
    case CollectiveKind::all_to_all:
      return outcome(MPI_Alltoall(input, count, type, output, count, type, comm));
    default:
      return fail("not a collective");
  }
}

int barrier() { return outcome(MPI_Barrier(communicator())); }

int variants() { return static_cast<int>(state().variants.size()); }

const char* variant_name(int variant) { return state().variants[static_cast<std::size_t>(variant)].name.c_str(); }

int use_variant(int variant) {
  state().current = static_cast<std::size_t>(variant);
  return 0;
}

const char* last_error() { return state().error.c_str(); }

void finalize() {
  for (Variant& variant : state().variants) MPI_Comm_free(&variant.communicator);
  state().variants.clear();
  if (state().initialised_here) MPI_Finalize();
}

}  // namespace

extern "C" const shoal_peer* shoal_peer_get(void) {
  static const shoal_peer peer = {SHOAL_PEER_INTERFACE, "openmpi",  "auto",  version,  init,
                                  why_unsupported,      run,        barrier, variants, variant_name,
                                  use_variant,          last_error, finalize};
  return &peer;
}
