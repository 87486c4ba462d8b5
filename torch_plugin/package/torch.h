// The header that a LibTorch program includes, as <shoal/torch.h>: a process group over all ranks, and DataParallel.
#pragma once

#include "torch_plugin/ddp/data_parallel.h"
#include "torch_plugin/process_group/join.h"
