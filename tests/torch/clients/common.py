"""Shared by the clients' scripts: a small network, the same data in every process, and a line with results."""
import json
import sys

import torch
import torch.nn.functional as F

CLASSES, WIDTH, SAMPLES, BATCH = 4, 8, 48, 6


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES))


def samples():
    generator = torch.Generator().manual_seed(2)
    return torch.utils.data.TensorDataset(torch.randn(SAMPLES, WIDTH, generator=generator),
                                          torch.randint(CLASSES, (SAMPLES,), generator=generator))


def share(rank, size):
    """The batches of one rank."""
    sampler = torch.utils.data.DistributedSampler(samples(), num_replicas=size, rank=rank, shuffle=False)
    return torch.utils.data.DataLoader(samples(), batch_size=BATCH, sampler=sampler)


def train(model, optimizer, batches, backward=torch.Tensor.backward):
    """The loss of each step."""
    losses = []
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(module):
    """The sum of the values of each parameter."""
    return [parameter.detach().double().sum().item() for parameter in module.parameters()]


def report(rank, **values):
    """Prints one line for clients_test.py, in one write, so that lines of ranks do not mix."""
    sys.stdout.write(f"RESULT {rank} {json.dumps(values)}\n")
    sys.stdout.flush()
