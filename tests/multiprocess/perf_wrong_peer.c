/* A peer of shoal_perf that does nothing: every result it leaves behind is wrong, and shoal_perf must say so. */
#include "bench/perf/peer.h"

static const char* version(void) { return "0"; }
static int init(const shoal_peer_config* config) {
  (void)config;
  return 0;
}
static const char* why_unsupported(int collective, int type, int op, size_t count) {
  (void)collective;
  (void)op;
  (void)count;
  return type == 1 ? "it has no float64" : 0;
}
static int run(const shoal_peer_call* call) {
  (void)call;
  return 0;
}
static int barrier(void) { return 0; }
static int variants(void) { return 1; }
static const char* variant_name(int variant) {
  (void)variant;
  return "idle";
}
static int use_variant(int variant) {
  (void)variant;
  return 0;
}
static const char* last_error(void) { return ""; }
static void finalize(void) {}

static const shoal_peer peer = {SHOAL_PEER_INTERFACE, "wrong",    "none",  version,  init,
                                why_unsupported,      run,        barrier, variants, variant_name,
                                use_variant,          last_error, finalize};

const shoal_peer* shoal_peer_get(void) { return &peer; }
