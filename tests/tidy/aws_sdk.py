"""What Amazon's and Kubeflow's own packages make of bench/aws. Run by the Python of `bench/setup aws-sdk`, without a network; JSON in, JSON out.

    aws_sdk.py submit      [{"arguments": [...], "fails": [model...]}...]    runs sagemaker_submit.py: its messages, and the SDK's requests to AWS
    aws_sdk.py requests    [request...]                                      what SageMaker would not accept in requests for training jobs
    aws_sdk.py manifests   [[class of kubeflow.training, manifest]...]       the manifests as these classes read them and write them again
"""
# pylint: disable=import-outside-toplevel  # each part needs packages of its own, and they are slow to import
import contextlib
import datetime
import io
import json
import os
import re
import socket
import sys
import tarfile
import tempfile
import time
import types

ACCOUNT = "123456789012"
REGION = "us-east-1"


def cut_off(attempts):
    """Blocks the network, and records attempts to use it, because the SDK hides some of its failures."""
    def refuse(*arguments, **_):
        attempts.append(repr(arguments))
        raise OSError("this test has no network")

    socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse


def hurry():
    """Makes sleep() return at once and advances the clock instead."""
    slept = [0.0]
    clock = time.time
    time.time = lambda: clock() + slept[0]
    time.sleep = lambda seconds: slept.__setitem__(0, slept[0] + seconds)


def beyond_limits(value, shape, path):
    """Adds the service's limits to the checks of botocore, which finds missing and unknown fields, wrong types and values that are too small."""
    found = []
    if shape.type_name == "structure":
        for name, each in value.items():
            found += beyond_limits(each, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list":
        for number, each in enumerate(value):
            found += beyond_limits(each, shape.member, f"{path}[{number}]")
    elif shape.type_name == "map":
        for key, each in value.items():
            found += beyond_limits(key, shape.key, f"{path}'s key") + beyond_limits(each, shape.value, f"{path}.{key}")
    elif shape.type_name == "string":
        with contextlib.suppress(re.error):  # patterns in Java's syntax
            if not re.fullmatch(shape.metadata.get("pattern", "(?s:.*)"), value):
                found.append(f"{path}: '{value}' is not like {shape.metadata['pattern']}")
        if shape.enum and value not in shape.enum:
            found.append(f"{path}: '{value}' is not among the service's words")
    size = value if isinstance(value, (int, float)) else len(value)
    if size > shape.metadata.get("max", size):
        found.append(f"{path}: {size}, at most {shape.metadata['max']}")
    return found


def complaints(requests):
    import botocore.session
    import botocore.validate
    shape = botocore.session.Session().get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
    found = []
    for request in requests:
        report = botocore.validate.ParamValidator().validate(request, shape)
        found.append(report.generate_report().splitlines() if report.has_errors() else beyond_limits(request, shape, "request"))
    return found


class Cloud:
    """Answers requests, which botocore has checked, in place of AWS. A job is reported as running once, then as ended."""

    def __init__(self, fails):
        self.fails = fails
        self.calls = []
        self.jobs = {}
        self.uploads = {}
        self.seen = set()

    def answer(self, model, params, **_):
        import botocore.awsrequest
        import botocore.validate
        self.calls.append(model.name)
        parsed = getattr(self, model.name, lambda _: {})(params)
        if model.output_shape:  # as AWS would answer
            botocore.validate.validate_parameters(parsed, model.output_shape)
        return botocore.awsrequest.AWSResponse(None, 200, {}, None), parsed

    def CreateTrainingJob(self, params):
        job = json.loads(params["body"])
        self.jobs[job["TrainingJobName"]] = job
        return {"TrainingJobArn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/x"}

    def DescribeTrainingJob(self, params):
        name = json.loads(params["body"])["TrainingJobName"]
        job = self.jobs[name]
        description = {"TrainingJobName": name, "TrainingJobArn": "arn:" + "x" * 20, "ModelArtifacts": {"S3ModelArtifacts": "s3://x"},
                       "CreationTime": datetime.datetime.now(), "SecondaryStatus": "Training", "TrainingJobStatus": "InProgress",
                       "ResourceConfig": job["ResourceConfig"], "StoppingCondition": job["StoppingCondition"]}
        if name in self.seen:
            description["TrainingJobStatus"] = "Completed"
            if json.loads(job["HyperParameters"]["model"]) in self.fails:
                description |= {"TrainingJobStatus": "Failed", "FailureReason": "AlgorithmError: exit code 1"}
        self.seen.add(name)
        return description

    def PutObject(self, params):
        with tarfile.open(fileobj=io.BytesIO(params["body"].read())) as archive:
            self.uploads[params["url"]] = archive.getnames()
        return {}

    def GetCallerIdentity(self, _):
        return {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/x"}

    def ListBuckets(self, _):
        return {"Buckets": []}

    def DescribeLogStreams(self, _):
        return {"logStreams": [{"logStreamName": "x/algo-1"}]}

    def GetLogEvents(self, _):
        return {"events": [], "nextForwardToken": "x"}


def submit(runs):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as settings:
        json.dump({"SchemaVersion": "1.0", "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}, settings)
        settings.flush()
        os.environ.update(SAGEMAKER_ADMIN_CONFIG_OVERRIDE=settings.name, SAGEMAKER_USER_CONFIG_OVERRIDE=settings.name,
                          AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION=REGION)
        import boto3
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/aws"))
        import sagemaker_submit
        results = []
        cloud = None
        boto3.setup_default_session()  # the session that the SDK uses
        boto3.DEFAULT_SESSION.events.register("before-call", lambda **call: cloud.answer(**call))
        for run in runs:
            cloud = Cloud(run["fails"])
            messages = []
            code = sagemaker_submit.main(run["arguments"], messages.append)
            results.append({"code": code, "messages": messages, "calls": cloud.calls, "jobs": list(cloud.jobs.values()), "uploads": cloud.uploads})
        return results


def manifests(pairs):
    from kubeflow.training import ApiClient
    client = ApiClient()
    written = []
    for name, manifest in pairs:
        try:
            written.append(client.sanitize_for_serialization(client.deserialize(types.SimpleNamespace(data=json.dumps(manifest)), name)))
        except ValueError as error:  # a missing field
            written.append(str(error))
    return written


def main():
    attempts = []
    cut_off(attempts)
    hurry()
    given = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # the SDK shows the logs of jobs
        found = {"submit": submit, "requests": complaints, "manifests": manifests}[sys.argv[1]](given)
    json.dump(found, sys.stdout)
    return "aws_sdk.py: something looked for a network: " + "; ".join(attempts) if attempts else 0


if __name__ == "__main__":
    sys.exit(main())
