"""What bench/study measures: every row is one run of shoal_train on an emulated cluster, and one result file."""
from dataclasses import dataclass

NETWORKS = ("vgg16", "resnet18", "mobilenet_v2", "shufflenet_v2_x1", "densenet121")
SHAPES = ("2x1", "4x1")
BACKENDS = ("shoal", "gloo", "mpi")
CORES = 2  # for which the expected times below hold

# Seconds of one core for one image of 32 x 32 pixels, and MB of gradients. Used for turns, first guesses and expected times only, never in
# the report.
SECONDS_PER_IMAGE = {"vgg16": 0.030, "resnet18": 0.045, "mobilenet_v2": 0.020, "shufflenet_v2_x1": 0.010, "shufflenet_v2_x0.5": 0.006,
                     "densenet121": 0.085}
GRADIENT_MB = {"vgg16": 58.9, "resnet18": 44.7, "mobilenet_v2": 9.2, "shufflenet_v2_x1": 5.1, "shufflenet_v2_x0.5": 1.4, "densenet121": 27.8}
START_S = 12  # of a cluster and its ranks
TURN_S = 10  # long, because the averages at the end of a turn overlap with no forward


@dataclass(frozen=True)
class Row:
    name: str
    part: str
    shape: str
    model: str
    batch: int  # images of a rank and step
    seconds: float  # of training, start not counted
    rate: str | None = "none"  # of the links; None: searched for, see rates.py
    backends: tuple = BACKENDS
    dataset: str = "cifar10"
    options: tuple = ()  # more of shoal_train
    trace: bool = False

    @property
    def ranks(self):
        hosts, per_host = self.shape.split("x")
        return int(hosts) * int(per_host)

    @property
    def hosts(self):
        return int(self.shape.split("x")[0])

    def guessed_compute_s(self):
        """Compute time of a step, if all ranks of the machine share its cores."""
        return SECONDS_PER_IMAGE[self.model] * self.batch * max(1.0, self.ranks / CORES)

    def wire_bits(self):
        """Bits on a link in a step, in each direction."""
        return 8e6 * GRADIENT_MB[self.model] * 2 * (self.hosts - 1) / self.hosts

    def guessed_step_s(self):
        compute_s = self.guessed_compute_s()
        if self.rate is None:
            return 2 * compute_s
        return compute_s + (self.wire_bits() / 1e9 if self.rate != "none" else 0)

    def expected_s(self):
        search_s = 2 * (START_S + 14 * self.guessed_step_s()) if self.rate is None else 0
        round_s = len(self.backends) * self.steps_of_turn() * self.guessed_step_s()
        return START_S + search_s + self.training_s() + round_s / 2

    def steps_of_turn(self, step_s=None):
        return max(6, min(60, round(TURN_S / (step_s or self.guessed_step_s()))))

    def training_s(self, step_s=None):
        """Seconds of training: enough for two rounds of turns after the steps that are not measured."""
        step_s = step_s or self.guessed_step_s()
        return max(self.seconds, len(self.backends) * step_s * (2 + 1.5 * self.steps_of_turn(step_s)))


def _rates():
    for shape in SHAPES:
        for model in NETWORKS:
            yield Row(f"rate-{shape}-{model}", f"rates-{shape}", shape, model, 8, 48, rate=None, trace=True)


def _plain():
    for batch in (8, 32):
        for shape in SHAPES:
            for model in NETWORKS:
                yield Row(f"1gbit-{shape}-batch{batch}-{model}", f"1gbit-batch{batch}", shape, model, batch, 60, rate="1gbit",
                          trace=model == "vgg16")


def _one_host():
    for model in NETWORKS:
        yield Row(f"one-host-{model}", "one-host", "1x2", model, 32, 45, backends=("shoal", "gloo"))


def _alone():
    """One rank: the reference of speed-ups, and the compute times of the predictions."""
    for batch in (8, 32):
        for model in NETWORKS:
            yield Row(f"alone-batch{batch}-{model}", "alone", "1x1", model, batch, 8, backends=("shoal",),
                      options=("--threads", "1", "--overlap", "backward"), trace=True)  # with backward overlap the trace has the update separately


def _accuracy():
    """The same images a step on one rank and on two."""
    runs = (("cifar10", "shufflenet_v2_x1", 6, 270), ("fashion_mnist", "shufflenet_v2_x0.5", 2, 280))
    for dataset, model, epochs, seconds in runs:
        for seed in (1, 2, 3):
            for shape, batch in (("1x1", 64), ("2x1", 32)):
                options = ("--epochs", str(epochs), "--seed", str(seed), "--lr", "0.05", "--schedule", "cosine", "--evaluate")
                yield Row(f"accuracy-{dataset}-seed{seed}-{shape}", "accuracy", shape, model, batch, seconds, backends=("shoal",), dataset=dataset,
                          options=options)


def _setting(minutes):
    """The setting of the study: 20 epochs if there is enough time."""
    runs = [(dataset, model) for dataset in ("cifar10", "fashion_mnist") for model in NETWORKS]
    seconds = max(60.0, 60 * minutes / len(runs) - 2 * START_S)
    for dataset, model in runs:
        options = ("--epochs", "20", "--optimizer", "adadelta", "--lr", "0.1", "--evaluate", "--seconds", str(round(seconds)))
        yield Row(f"setting-{dataset}-{model}", "setting", "2x1", model, 64, seconds, rate="1gbit", dataset=dataset, options=options)


PARTS = {
    "rates-2x1": "2 hosts x 1 rank, at the link rate at which the better of Gloo and MPI exposes about half of its step",
    "rates-4x1": "4 hosts x 1 rank, the same",
    "1gbit-batch8": "1 Gbit/s, batch 8",
    "1gbit-batch32": "1 Gbit/s, batch 32",
    "one-host": "one host, 2 ranks, links not shaped: bound by compute",
    "alone": "one rank, one thread",
    "accuracy": "accuracy on one rank and on two, the same images a step, three seeds",
    "scaling": "predicted scaling to 512 nodes; needs the part alone",
    "setting": "the setting of the study: Adadelta 0.1, batch 128 over two ranks, 20 epochs or what --budget allows",
}
DEFAULT_PARTS = [part for part in PARTS if part != "setting"]


def rows_of(parts, budget_minutes):
    """The rows of `parts`, part after part."""
    every = [*_rates(), *_alone(), *_plain(), *_one_host(), *_accuracy(), *_setting(budget_minutes or 120)]
    return [row for part in PARTS if part in parts for row in every if row.part == part]
