#!/usr/bin/env python3
"""Submits training jobs to SageMaker: a list of models, side by side or one after another on a warm pool.

    pip install 'sagemaker>=2.240,<3'
    bench/aws/sagemaker_submit.py --image ACCOUNT.dkr.ecr.REGION.amazonaws.com/shoal:aws-sagemaker --role arn:aws:iam::... \\
        --models resnet18,vgg11 --instance ml.p4d.24xlarge --nodes 2 -- --dataset synthetic --steps 500 --batch 64

Side by side (--parallel) every job has instances of its own. One after another, the instances of a job are kept for --keep-alive seconds, so that the
next starts in seconds instead of minutes; all but the model must be equal for that. A job that fails stops the list unless --keep-going is given.
--dry-run prints the jobs as JSON and needs neither the SDK nor credentials. What follows -- are options of shoal_train.
"""
import argparse
import json
import re
import secrets
import sys
import time

ENTRY = "sagemaker_entry.py"
INSTANCE = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+")
MODEL = re.compile(r"[A-Za-z0-9_.]+")
LONGEST_NAME = 63  # of a training job
LONGEST_KEEP = 21600  # seconds; the service's limit


class Problem(Exception):
    """An error that the user can fix."""


def parse(arguments):
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own_words, options = arguments[:at], arguments[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--image", required=True, help="of bench/aws/Dockerfile, target sagemaker, in ECR")
    parser.add_argument("--role", required=True, help="ARN of the execution role")
    parser.add_argument("--models", default="resnet18", help="networks, one job each: resnet18,vgg11 (shoal_train models lists them)")
    parser.add_argument("--instance", default="ml.p4d.24xlarge", help="instance type")
    parser.add_argument("--nodes", type=int, default=2, help="instances of each job")
    parser.add_argument("--parallel", action="store_true", help="submit all jobs at once")
    parser.add_argument("--keep-going", action="store_true", help="continue with the next model when one fails")
    parser.add_argument("--keep-alive", type=int, default=1800, help="seconds that instances wait for the next job; 0: not at all")
    parser.add_argument("--data", help="s3:// folder with the data set's files")
    parser.add_argument("--output", help="s3:// folder for results (default: the session's bucket)")
    parser.add_argument("--subnets", default="", help="of a VPC, by commas: EFA needs one whose security group lets itself through")
    parser.add_argument("--security-groups", default="", help="by commas")
    parser.add_argument("--max-run", type=int, default=86400, help="seconds until a job is ended")
    parser.add_argument("--name", default="shoal", help="how names of jobs begin")
    parser.add_argument("--dry-run", action="store_true", help="print the jobs; submit nothing")
    return parser.parse_args(own_words), options


def hyperparameters(options):
    """['--steps', '5', '--evaluate'] -> {'steps': '5', 'evaluate': ''}."""
    pairs = {}
    at = 0
    while at < len(options):
        if not options[at].startswith("--") or options[at] == "--":
            raise Problem(f"'{options[at]}' after -- is no option of shoal_train")
        name, equals, value = options[at][2:].partition("=")
        at += 1
        if not equals and at < len(options) and not options[at].startswith("--"):
            value = options[at]
            at += 1
        if name == "model":
            raise Problem("give the model by --models")
        pairs[name] = value
    return pairs


def describe(arguments, options, now, key):
    """One dictionary for each job: its name, and the arguments of the SDK's estimator."""
    models = arguments.models.split(",")
    if bad := [model for model in models if not MODEL.fullmatch(model)]:
        raise Problem(f"--models: '{bad[0]}' is no name of a model")
    if not INSTANCE.fullmatch(arguments.instance):
        raise Problem(f"--instance: '{arguments.instance}' is not like ml.p4d.24xlarge")
    if arguments.nodes < 1 or arguments.keep_alive < 0 or arguments.max_run < 1:
        raise Problem("--nodes and --max-run are at least 1, --keep-alive at least 0")
    if arguments.keep_alive > LONGEST_KEEP:
        raise Problem(f"--keep-alive: SageMaker keeps instances for at most {LONGEST_KEEP} seconds, not {arguments.keep_alive}")
    if bool(arguments.subnets) != bool(arguments.security_groups):
        raise Problem("--subnets and --security-groups go together")
    for name in ("data", "output"):
        if (place := getattr(arguments, name)) and not place.startswith("s3://"):
            raise Problem(f"--{name}: '{place}' does not begin with s3://")
    shared = hyperparameters(options)
    jobs = []
    for number, model in enumerate(models):
        estimator = {
            "entry_point": ENTRY,
            "image_uri": arguments.image,
            "role": arguments.role,
            "instance_type": arguments.instance,
            "instance_count": arguments.nodes,
            "distribution": {"torch_distributed": {"enabled": True}},
            "hyperparameters": {"model": model, **shared},
            # Users who may describe the job can read it: it protects against other jobs, not against their owner.
            "environment": {"SHOAL_JOB_KEY": key, "SHOAL_EXPLAIN": "1"},
            "max_run": arguments.max_run,
            # Both are on by default, and a monitor beside the ranks takes time from them.
            "debugger_hook_config": False,
            "disable_profiler": True,
        }
        if arguments.keep_alive and not arguments.parallel:
            estimator["keep_alive_period_in_seconds"] = arguments.keep_alive
        if arguments.output:
            estimator["output_path"] = arguments.output
        if arguments.subnets:
            estimator["subnets"] = arguments.subnets.split(",")
            estimator["security_group_ids"] = arguments.security_groups.split(",")
        name = re.sub(r"[^A-Za-z0-9-]", "-", f"{arguments.name}-{model}-{now}-{number}")
        if len(name) > LONGEST_NAME:
            raise Problem(f"'{name}' is longer than the {LONGEST_NAME} characters of a job's name; shorten --name")
        jobs.append({"name": name, "model": model, "estimator": estimator, "inputs": {"training": arguments.data} if arguments.data else None})
    return jobs


def estimator_class():
    """The SDK's estimator, imported only where jobs are submitted."""
    try:
        from sagemaker.pytorch import PyTorch  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        raise Problem(f"the SageMaker SDK is missing ({error}); pip install 'sagemaker>=2.240,<3', or try --dry-run") from error
    return PyTorch


def submit(jobs, make, source_dir, parallel, keep_going, say):
    """Runs the jobs; returns the names of those that failed. `make`: the estimator's class."""
    failed = []
    started = []
    for job in jobs:
        say(f"{job['name']}: {job['model']} on {job['estimator']['instance_count']} x {job['estimator']['instance_type']}")
        try:
            estimator = make(source_dir=source_dir, **job["estimator"])
            estimator.fit(inputs=job["inputs"], job_name=job["name"], wait=not parallel, logs="All" if not parallel else "None")
            started.append((job, estimator))
        except Exception as error:  # pylint: disable=broad-except  # the SDK has no base class for a job that failed
            say(f"{job['name']} failed: {error}")
            failed.append(job["name"])
            if not keep_going:
                break
    if parallel:
        for job, estimator in started:
            try:
                estimator.latest_training_job.wait(logs="None")
                say(f"{job['name']} is done")
            except Exception as error:  # pylint: disable=broad-except
                say(f"{job['name']} failed: {error}")
                failed.append(job["name"])
    return failed


def main(arguments, say=lambda text: print(f"sagemaker_submit: {text}", file=sys.stderr)):
    try:
        own, options = parse(arguments)
        jobs = describe(own, options, time.strftime("%Y%m%d-%H%M%S", time.gmtime()), "dry-run" if own.dry_run else secrets.token_hex(32))
        if own.dry_run:
            print(json.dumps(jobs, indent=1))
            return 0
        make = estimator_class()
    except Problem as problem:
        say(str(problem))
        return 2
    failed = submit(jobs, make, __file__.rpartition("/")[0] or ".", own.parallel, own.keep_going, say)
    say(f"{len(jobs)} jobs, {len(failed)} failed" + (": " + ", ".join(failed) if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
