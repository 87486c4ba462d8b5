"""torchft: torchft_client.py BACKEND. Two replicas of one rank each; the second one dies before step DIES_AT, the first one continues."""
import os
import subprocess
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torchft
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupWrapper

import common

STEPS, DIES_AT = 8, 4
TIMEOUT = timedelta(seconds=20)


class ProcessGroupShoal(ProcessGroupWrapper):
    def _create_pg(self, store, rank, world_size):
        import shoal

        return shoal.process_group(store, rank, world_size, self._timeout)


def wait_for_both(folder, replica):
    """Waits for both replicas: then the lighthouse knows both and includes them in the first quorum."""
    store = dist.FileStore(os.path.join(folder, "store"), 2)
    store.set(str(replica), "ready")
    store.wait([str(1 - replica)], TIMEOUT)


def train(backend, replica, folder):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = common.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = ProcessGroupShoal(TIMEOUT) if backend == "shoal" else torchft.ProcessGroupGloo(TIMEOUT)
    manager = torchft.Manager(pg=group, load_state_dict=model.load_state_dict, state_dict=model.state_dict, min_replica_size=1,
                              use_async_quorum=False, timeout=TIMEOUT, store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1,
                              replica_id=f"replica{replica}", hostname="127.0.0.1", init_sync=False)
    wait_for_both(folder, replica)
    wrapped, stepper = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
    batches = list(common.share(replica, 2))
    losses, sizes = [], []
    while (step := manager.current_step()) < STEPS:
        if replica == 1 and step == DIES_AT:
            os._exit(7)
        inputs, labels = batches[step % len(batches)]
        stepper.zero_grad()
        loss = torch.nn.functional.cross_entropy(wrapped(inputs), labels)
        loss.backward()
        participants = manager.num_participants()
        stepper.step()
        if manager.current_step() > step:
            losses.append(loss.item())
            sizes.append(participants)
    common.report(replica, losses=losses, replicas=sizes, weights=common.weights(model))
    manager.shutdown(wait=False)


def main(backend):
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=5000, heartbeat_timeout_ms=1000)
    environment = os.environ | {"TORCHFT_LIGHTHOUSE": lighthouse.address()}
    with tempfile.TemporaryDirectory() as folder:
        replicas = [subprocess.Popen([sys.executable, __file__, backend, str(replica), folder], env=environment) for replica in range(2)]
        statuses = [replica.wait() for replica in replicas]
    lighthouse.shutdown()
    if statuses != [0, 7]:
        sys.exit(f"the replicas ended with {statuses}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        train(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1])
