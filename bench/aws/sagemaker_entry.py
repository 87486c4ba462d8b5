"""Entry point of a SageMaker training job: becomes shoal_train, with the job's hyperparameters as its options.

SageMaker starts this under torchrun, one process for each GPU; the environment is torchrun's, which shoal reads. Results and checkpoints go where
SageMaker keeps them."""
import os
import sys


def command(arguments, environment):
    """The program and its arguments. SageMaker passes hyperparameters as --name value; a switch has an empty value."""
    words = ["shoal_train", *filter(None, arguments)]
    if environment.get("SM_CHANNEL_TRAINING") and "--data" not in arguments:
        words += ["--data", environment["SM_CHANNEL_TRAINING"]]
    if "--json" not in arguments:
        words += ["--json", os.path.join(environment.get("SM_OUTPUT_DATA_DIR", "."), "results.json")]
    return words


if __name__ == "__main__":
    WORDS = command(sys.argv[1:], os.environ)
    os.execvp(WORDS[0], WORDS)
