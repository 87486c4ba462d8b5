"""Checks the files of bench/aws without AWS: shell script, manifests (against the table of instances), Dockerfile, SageMaker's jobs. If
`bench/setup aws-sdk` has installed the packages of Kubeflow and Amazon, these check manifests and jobs too."""
import contextlib
import copy
import functools
import glob
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types

import pytest

import support

AWS = os.path.join(support.REPOSITORY, "bench/aws")
SHOAL = os.path.join(support.BUILD, "bin/shoal")


def load(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(AWS, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(name):
    with open(os.path.join(AWS, name), encoding="utf-8") as file:
        return file.read()


def instance(name):
    """The row of the table of instances."""
    done = subprocess.run([SHOAL, "topology", "--instance", name, "--json", "--no-metadata"], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)["table"]


def setup_text():
    with open(os.path.join(support.REPOSITORY, "bench/setup"), encoding="utf-8") as file:
        return file.read()


def sdk_environment():
    """The environment in which bench/setup installs the packages of Amazon and Kubeflow; None where it does not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    version = re.search(r"^sagemaker_version=(\S+)", setup_text(), re.MULTILINE)[1]
    venv = f"{cache}/shoal/venv-aws-{version}"
    return venv if glob.glob(f"{venv}/lib/python3*/site-packages/sagemaker-{version}.dist-info") else None


def need_sdk():
    if not sdk_environment():
        pytest.skip("no SDK (bench/setup aws-sdk)")


@functools.cache
def ask_sdk(part, given):
    """The output of aws_sdk.py, JSON like its input."""
    with tempfile.TemporaryDirectory() as home:  # without the user's AWS settings
        done = subprocess.run([sdk_environment() + "/bin/python", "-B", os.path.join(support.REPOSITORY, "tests/tidy/aws_sdk.py"), part], input=given,
                              env={"PATH": "/usr/bin:/bin", "HOME": home}, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise AssertionError(f"aws_sdk.py {part} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def sdk(part, given):
    return json.loads(ask_sdk(part, json.dumps(given)))


class TestShell:
    def test_shellcheck_accepts_batch_script(self):
        if not shutil.which("shellcheck"):
            pytest.skip("no shellcheck (bench/setup test-packages)")
        done = subprocess.run(["shellcheck", os.path.join(AWS, "slurm.sbatch")], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout


class TestSlurm:
    """Runs the batch script with fakes of the programs that it calls, which log their arguments."""

    @pytest.fixture(autouse=True)
    def programs(self, folder):
        self.bin = folder
        self.log = os.path.join(self.bin, "log")
        self.program("srun", 'echo "srun $*${SLURM_HOSTFILE:+ hosts: $(paste -sd " " "$SLURM_HOSTFILE")} key ${#SHOAL_JOB_KEY}" >> "$LOG"\n'
                             'case "$*" in *doctor*) exit "${UNFIT:-0}" ;; esac')
        self.program("scontrol", 'case "$2" in hostnames) printf "q-1\\nq-2\\nq-3\\n" ;;\n'
                                 '*) echo "NodeName=$3 NodeAddr=10.0.0.${3#q-} NodeHostName=x" ;; esac')

    def program(self, name, text):
        path = os.path.join(self.bin, name)
        with open(path, "w", encoding="ascii") as file:
            file.write("#!/bin/bash\n" + text + "\n")
        os.chmod(path, 0o755)

    def run_script(self, *arguments, **variables):
        environment = {"PATH": self.bin + ":" + os.path.dirname(SHOAL) + ":/usr/bin:/bin", "LOG": self.log,
                       "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "q-[1-3]", "SLURM_NTASKS_PER_NODE": "2", **variables}
        done = subprocess.run([os.path.join(AWS, "slurm.sbatch"), *arguments], env=environment, capture_output=True, text=True,
                              check=False, timeout=60)
        calls = []
        if os.path.exists(self.log):
            with open(self.log, encoding="ascii") as file:
                calls = file.read().splitlines()
        return done, calls

    def test_script_checks_machines_then_runs_command(self):
        done, calls = self.run_script("shoal_train", "--model", "resnet18", ORDER="0")
        assert done.returncode == 0, done.stderr + done.stdout
        assert calls == ["srun --nodes=3 --ntasks-per-node=1 --label shoal doctor --machine key 64",
                         "srun --nodes=3 --ntasks=6 --cpu-bind=none --kill-on-bad-exit=1 shoal_train --model resnet18 key 64"]
        assert not re.search(r"[0-9a-f]{64}", done.stdout + done.stderr), done.stdout + done.stderr  # the job key

    def test_unfit_machine_stops_job_unless_check_is_0(self):
        done, calls = self.run_script(ORDER="0", UNFIT="1")
        assert (done.returncode, len(calls)) == (1, 1)
        assert "CHECK=0" in done.stdout
        done, calls = self.run_script(ORDER="0", UNFIT="1", CHECK="0")
        assert done.returncode == 0
        assert "shoal_perf -b 8 -e 1G -f 4" in calls[-1]

    def test_hosts_follow_network_topology(self):
        if not os.path.exists(SHOAL):
            pytest.skip("shoal is not built")
        instances = {"Reservations": [{"Instances": [{"InstanceId": f"i-{i}", "PrivateIpAddress": f"10.0.0.{i}"} for i in (1, 2, 3)]}]}
        topology = {"Instances": [{"InstanceId": f"i-{i}", "NetworkNodes": ["a", "b", leaf]} for i, leaf in ((1, "x"), (2, "y"), (3, "x"))]}
        self.program("aws", f"case \"$2\" in describe-instances) echo '{json.dumps(instances)}' ;; *) echo '{json.dumps(topology)}' ;; esac")
        done, calls = self.run_script(CONTAINER="me/shoal:aws")
        assert done.returncode == 0, done.stderr + done.stdout
        assert "--distribution=arbitrary" in calls[-1]
        assert "--container-image=me/shoal:aws" in calls[-1]
        assert "hosts: q-1 q-1 q-3 q-3 q-2 q-2" in calls[-1]
        assert re.search("(?m): q-1 q-3 q-2$", done.stdout), done.stdout

    def test_ec2_error_keeps_host_order_of_slurm(self):
        self.program("aws", "echo denied >&2; exit 254")
        done, calls = self.run_script()
        assert done.returncode == 0, done.stderr
        assert "EC2" in done.stdout
        assert "arbitrary" not in calls[-1]


class TestKubernetes:
    def manifest(self, name):
        try:
            import yaml  # pylint: disable=import-outside-toplevel
        except ImportError:
            pytest.skip("no PyYAML (bench/setup test-packages: python3-yaml)")
        documents = list(yaml.safe_load_all(text_of("kubernetes/" + name)))
        assert len(documents) == 1
        return documents[0]

    def check_worker(self, pod):
        """Checks that the requests of a pod with GPUs match its instance type, and that it has what EFA needs."""
        assert len(pod["containers"]) == 1
        container = pod["containers"][0]
        row = instance(pod["nodeSelector"]["node.kubernetes.io/instance-type"])
        resources = container["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == row["gpus"]
        assert resources["limits"]["vpc.amazonaws.com/efa"] == row["efa_cards"]
        for name in ("nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"):  # Kubernetes refuses extended resources that differ
            assert resources["limits"][name] == resources["requests"][name]
        assert re.search(r"^\d+Mi$", resources["limits"]["hugepages-2Mi"]), resources["limits"]["hugepages-2Mi"]
        assert "memory" in resources["requests"]  # huge pages need it or cpu
        assert "IPC_LOCK" in container["securityContext"]["capabilities"]["add"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for mount in container["volumeMounts"]:
            assert mount["name"] in volumes
        return row

    def check_frame(self, manifest, version, kind):
        assert (manifest["apiVersion"], manifest["kind"]) == (version, kind)
        assert re.search(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", manifest["metadata"]["name"]), manifest["metadata"]["name"]
        assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}

    def check_replica(self, replica):
        assert set(replica) == {"replicas", "restartPolicy", "template"}
        assert replica["replicas"] >= 1
        assert replica["restartPolicy"] in ("Never", "OnFailure")  # MPIJob has no others
        return replica["template"]["spec"]

    def test_pytorch_job_is_valid(self):
        manifest = self.manifest("pytorchjob.yaml")
        self.check_frame(manifest, "kubeflow.org/v1", "PyTorchJob")
        spec = manifest["spec"]
        assert set(spec) == {"nprocPerNode", "runPolicy", "pytorchReplicaSpecs"}
        assert set(spec["pytorchReplicaSpecs"]) == {"Master", "Worker"}
        assert spec["pytorchReplicaSpecs"]["Master"]["replicas"] == 1
        for replica in spec["pytorchReplicaSpecs"].values():
            pod = self.check_replica(replica)
            row = self.check_worker(pod)
            assert spec["nprocPerNode"] == str(row["gpus"])
            container = pod["containers"][0]
            assert container["name"] == "pytorch"
            assert "torchrun --no-python shoal_train" in container["args"][0]
            key = {each["name"]: each for each in container["env"]}["SHOAL_JOB_KEY"]
            assert "secretKeyRef" in key["valueFrom"]
            assert "value" not in key

    def test_mpi_job_is_valid(self):
        manifest = self.manifest("mpijob.yaml")
        self.check_frame(manifest, "kubeflow.org/v2beta1", "MPIJob")
        spec = manifest["spec"]
        assert set(spec) == {"slotsPerWorker", "sshAuthMountPath", "runPolicy", "mpiReplicaSpecs"}
        launcher = self.check_replica(spec["mpiReplicaSpecs"]["Launcher"])
        row = self.check_worker(self.check_replica(spec["mpiReplicaSpecs"]["Worker"]))
        assert spec["slotsPerWorker"] == row["gpus"]
        arguments = launcher["containers"][0]["args"]
        assert launcher["containers"][0]["command"] == ["mpirun"]
        assert arguments[arguments.index("-N") + 1] == str(row["gpus"])
        assert "shoal_perf" in arguments
        assert all(isinstance(each, str) for each in arguments)

    @pytest.mark.long
    def test_operator_classes_accept_manifests(self):
        """The operator's classes read and write a manifest without loss. They drop unknown fields and convert values to the type of the field."""
        need_sdk()
        pytorch = quantities_as_text(self.manifest("pytorchjob.yaml"))
        mpi = quantities_as_text(self.manifest("mpijob.yaml"))
        del mpi["spec"]["sshAuthMountPath"]  # the classes are of v1, which lacks this field; all other fields are the same
        wrong = []

        def plant(change):
            wrong.append(copy.deepcopy(pytorch))
            change(wrong[-1]["spec"], wrong[-1]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"])

        plant(lambda spec, pod: spec.update(nProcPerNode=spec.pop("nprocPerNode")))
        plant(lambda spec, pod: spec["runPolicy"].update(cleanPods="Running"))
        plant(lambda spec, pod: pod.update(nodeSelectors={}))
        plant(lambda spec, pod: pod["containers"][0].update(volumeMount=[]))
        plant(lambda spec, pod: pod["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"].update(secret="x"))
        plant(lambda spec, pod: spec.update(nprocPerNode=8))  # must be text
        plant(lambda spec, pod: pod["containers"][0].pop("name"))  # must be there
        written = sdk("manifests", [["KubeflowOrgV1PyTorchJob", pytorch], ["KubeflowOrgV1MPIJob", mpi]] +
                      [["KubeflowOrgV1PyTorchJob", each] for each in wrong])
        assert written[:2] == [pytorch, mpi]
        for before, after in zip(wrong, written[2:], strict=True):
            assert before != after


def quantities_as_text(node):
    """Converts quantities to text: Kubernetes accepts numbers, but its classes keep text."""
    if isinstance(node, list):
        return [quantities_as_text(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {key: {name: str(each) for name, each in value.items()} if key in ("requests", "limits") else quantities_as_text(value)
            for key, value in node.items()}


def dockerfile_complaints(text, exists):
    """Rules for a Dockerfile. `exists`: a function that tells whether a path of the checkout exists."""
    complaints = []
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    stages = set()
    pipefail = False
    for line in filter(None, (each.strip() for each in joined.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            image, _, stage = rest.partition(" AS ")
            if image not in stages and not re.search(r":(?!latest$)[\w.-]+$|@sha256:", image):
                complaints.append(f"{image} has no fixed version")
            stages.add(stage)
            pipefail = False if image not in stages else pipefail
        elif word == "SHELL":
            pipefail = "pipefail" in rest
        elif word == "RUN":
            if "|" in rest.replace("||", "") and not pipefail:
                complaints.append(f"a failure before the pipe goes unseen: {rest[:60]}")
            if "apt-get install" in rest and "--no-install-recommends" not in rest:
                complaints.append("apt-get install without --no-install-recommends")
            if "apt-get update" in rest and "rm -rf" not in rest:
                complaints.append("package lists stay in the image")
            if re.search(r"curl(?! -fsSLO? )", rest.replace(" curl gnupg", "")):
                complaints.append("curl that does not fail on an error page")
            if "--trusted-host" in rest or "--allow-unauthenticated" in rest or "http://" in rest:
                complaints.append("something is fetched without a check")
        elif word == "COPY":
            sources = [each for each in rest.split()[:-1] if not each.startswith("--")]
            if "--from=" in rest:
                if (stage := re.search(r"--from=(\S+)", rest)[1]) not in stages:
                    complaints.append(f"no stage {stage}")
            else:
                complaints += [f"{each} is not in the checkout" for each in sources if not exists(each)]
        elif word == "ADD":
            complaints.append("ADD fetches and unpacks unverified content")
        elif word not in ("ARG", "ENV", "WORKDIR", "CMD", "ENTRYPOINT", "EXPOSE", "USER", "LABEL"):
            complaints.append(f"unknown instruction {word}")
    return complaints


class TestDockerfile:
    def test_dockerfile_is_valid(self):
        text = text_of("Dockerfile")
        assert dockerfile_complaints(text, lambda path: os.path.exists(os.path.join(support.REPOSITORY, path))) == []
        assert "--skip-kmod" in text  # the driver is the host's
        assert "gpg --batch --verify" in text
        for name in ("shoal_train", "shoal topology", '"shoal", "doctor"'):
            assert name in text
        for name, version in re.findall(r'"(sagemaker-[a-z-]+)==([\d.]+)"', text):  # the tests use the versions of the image
            assert f" {name.replace('-', '_')}=={version}" in setup_text()

    @pytest.mark.parametrize("text", (
        "FROM debian", "FROM debian:latest", "FROM debian:12\nRUN a | b", "FROM debian:12\nCOPY no/such /x",
        "FROM debian:12\nCOPY --from=none /a /b", "FROM debian:12\nRUN apt-get install -y x", "FROM debian:12\nADD http://x /y",
        "FROM debian:12\nRUN apt-get update", "FROM debian:12\nRUN curl -O https://x", "FROM debian:12\nFROB x"))
    def test_checker_reports_faulty_dockerfiles(self, text):
        assert dockerfile_complaints(text + "\n", lambda path: False)


class Estimator:
    """A fake of the SDK's estimator class."""
    made = []
    fails = ()

    def __init__(self, **arguments):
        self.arguments = arguments
        self.latest_training_job = self
        Estimator.made.append(self)

    def fit(self, inputs=None, job_name=None, wait=None, logs=None):
        self.call = {"inputs": inputs, "job_name": job_name, "wait": wait, "logs": logs}
        if wait and self.arguments["hyperparameters"]["model"] in self.fails:
            raise RuntimeError("AlgorithmError: exit code 1")

    def wait(self, logs=None):
        self.waited = logs
        if self.arguments["hyperparameters"]["model"] in self.fails:
            raise RuntimeError("AlgorithmError: exit code 1")


class TestSageMaker:
    NEEDED = ("--image", "1.dkr.ecr.us-east-1.amazonaws.com/shoal:aws-sagemaker", "--role", "arn:aws:iam::1:role/x")

    @pytest.fixture(autouse=True)
    def replaced_sdk(self, monkeypatch):
        self.submit = load("sagemaker_submit")
        Estimator.made = []
        Estimator.fails = ()
        self.messages = []
        sdk = types.ModuleType("sagemaker")
        sdk.pytorch = types.ModuleType("sagemaker.pytorch")
        sdk.pytorch.PyTorch = Estimator
        for name, module in (("sagemaker", sdk), ("sagemaker.pytorch", sdk.pytorch)):
            monkeypatch.setitem(sys.modules, name, module)

    def main(self, *arguments):
        return self.submit.main([*self.NEEDED, *arguments], self.messages.append)

    def test_jobs_run_in_turn_on_warm_pool(self):
        assert self.main("--models", "resnet18,vgg11,densenet121", "--nodes", "4", "--data", "s3://b/data", "--", "--steps", "500") == 0
        assert [job.arguments["hyperparameters"] for job in Estimator.made] == [
            {"model": name, "steps": "500"} for name in ("resnet18", "vgg11", "densenet121")]
        first = Estimator.made[0].arguments
        for job in Estimator.made:
            assert job.arguments["keep_alive_period_in_seconds"] == 1800
            assert job.call["wait"]
            assert job.call["inputs"] == {"training": "s3://b/data"}
            # A warm pool serves jobs with equal settings of instances.
            assert {**job.arguments, "hyperparameters": None} == {**first, "hyperparameters": None}
        assert first["distribution"] == {"torch_distributed": {"enabled": True}}
        assert (first["instance_type"], first["instance_count"]) == ("ml.p4d.24xlarge", 4)
        assert len(first["environment"]["SHOAL_JOB_KEY"]) >= 64
        assert os.path.exists(os.path.join(first["source_dir"], first["entry_point"]))
        assert len({job.call["job_name"] for job in Estimator.made}) == 3
        for job in Estimator.made:
            assert re.search(r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$", job.call["job_name"]), job.call["job_name"]  # the pattern of the service

    def test_parallel_jobs_all_start_first(self):
        Estimator.fails = ("vgg11",)
        assert self.main("--models", "resnet18,vgg11", "--parallel") == 1
        for job in Estimator.made:
            assert not job.call["wait"]
            assert "keep_alive_period_in_seconds" not in job.arguments  # no later job can use it
            assert job.waited == "None"
        assert re.search(rf"\b2\b.*\b1\b.*: {Estimator.made[1].call['job_name']}$", self.messages[-1]), self.messages[-1]

    def test_failed_job_stops_list_unless_keep_going(self):
        Estimator.fails = ("resnet18",)
        assert self.main("--models", "resnet18,vgg11") == 1
        assert len(Estimator.made) == 1
        assert self.main("--models", "resnet18,vgg11", "--keep-going") == 1
        assert len(Estimator.made) == 3

    def test_dry_run_needs_no_sdk(self, monkeypatch):
        for name in ("sagemaker", "sagemaker.pytorch"):
            monkeypatch.setitem(sys.modules, name, None)  # importing it fails
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert self.main("--dry-run", "--keep-alive", "0", "--subnets", "subnet-1", "--security-groups", "sg-1",
                             "--", "--evaluate", "--lr=0.1") == 0
        job, = json.loads(printed.getvalue())
        assert job["estimator"]["hyperparameters"] == {"model": "resnet18", "evaluate": "", "lr": "0.1"}
        assert job["estimator"]["security_group_ids"] == ["sg-1"]
        assert "keep_alive_period_in_seconds" not in job["estimator"]
        assert self.main() == 2
        assert re.search("SageMaker SDK.*--dry-run", self.messages[-1]), self.messages[-1]
        assert Estimator.made == []

    @pytest.mark.parametrize("arguments, expected", (
        (("--keep-alive", "21601"), r"--keep-alive: .*\b21600\b.*\b21601\b"), (("--models", "a b"), "--models: 'a b'"),
        (("--instance", "p4d.24xlarge"), "--instance: 'p4d.24xlarge'"), (("--nodes", "0"), r"--nodes .*\b1\b"),
        (("--subnets", "s"), "--subnets .*--security-groups"), (("--data", "/x"), "--data: '/x'"), (("--", "steps"), "'steps'"),
        (("--", "--model", "x"), "--models"), (("--name", "n" * 60), rf"'{'n' * 60}\S*' .*\b63\b.*--name")),
        ids=("keep-alive", "models", "instance", "nodes", "subnets", "data", "option", "model", "name"))
    def test_submit_rejects_bad_arguments(self, arguments, expected):
        assert self.main(*arguments) == 2
        assert re.search(expected, self.messages[-1]), self.messages[-1]
        assert Estimator.made == []

    def test_entry_point_builds_shoal_train_command(self):
        command = load("sagemaker_entry").command
        assert command(["--model", "vgg11", "--evaluate", "", "--steps", "5"],
                       {"SM_CHANNEL_TRAINING": "/data", "SM_OUTPUT_DATA_DIR": "/out"}) == [
            "shoal_train", "--model", "vgg11", "--evaluate", "--steps", "5", "--data", "/data", "--json", "/out/results.json"]
        assert command(["--json", "x", "--data", "y"], {"SM_CHANNEL_TRAINING": "/data"}) == ["shoal_train", "--json", "x", "--data", "y"]


@pytest.mark.long
class TestSageMakerSdk:
    """The same with the real SDK and a fake AWS; and the SageMaker toolkit of the image with programs that log their arguments."""
    NEEDED = ("--image", "123456789012.dkr.ecr.us-east-1.amazonaws.com/shoal:aws-sagemaker", "--role", "arn:aws:iam::123456789012:role/x")
    MODELS = (*NEEDED, "--models", "resnet18,vgg11")
    RUNS = {
        "pool": {"arguments": [*MODELS, "--nodes", "4", "--data", "s3://b/data", "--max-run", "3600", "--subnets", "subnet-1,subnet-2",
                               "--security-groups", "sg-1", "--", "--steps", "500", "--evaluate"], "fails": []},
        "parallel": {"arguments": [*MODELS, "--parallel", "--output", "s3://o/x"], "fails": ["resnet18"]},
        "stopped": {"arguments": [*MODELS, "--keep-alive", "0"], "fails": ["resnet18"]},
        "continued": {"arguments": [*MODELS, "--keep-going", "--instance", "ml.c5n.18xlarge"], "fails": ["resnet18"]},
    }

    @pytest.fixture(autouse=True)
    def submitted(self):
        need_sdk()
        self.runs = dict(zip(self.RUNS, sdk("submit", list(self.RUNS.values())), strict=True))

    def order(self, run):
        """The requests about jobs."""
        return "".join({"CreateTrainingJob": "C", "DescribeTrainingJob": "d"}.get(call, "") for call in self.runs[run]["calls"])

    def test_service_model_accepts_every_request(self):
        jobs = [job for run in self.runs.values() for job in run["jobs"]]
        wrong = []

        def plant(change):
            wrong.append(copy.deepcopy(jobs[0]))
            change(wrong[-1])

        plant(lambda job: job.pop("RoleArn"))
        plant(lambda job: job.update(Role="x"))
        plant(lambda job: job.update(TrainingJobName="a_b"))
        plant(lambda job: job["Environment"].update({"A B": "x"}))
        plant(lambda job: job["ResourceConfig"].update(InstanceCount="4"))
        plant(lambda job: job["ResourceConfig"].update(InstanceType="ml.p9.large"))
        plant(lambda job: job["ResourceConfig"].update(KeepAlivePeriodInSeconds=21601))
        found = sdk("requests", jobs + wrong)
        assert found[:len(jobs)] == [[]] * len(jobs)
        for complaints in found[len(jobs):]:
            assert len(complaints) == 1, complaints

    def test_jobs_run_in_turn_on_warm_pool(self):
        run = self.runs["pool"]
        assert run["code"] == 0, run["messages"]
        assert self.order("pool") == "CddCdd"
        for model, job in zip(("resnet18", "vgg11"), run["jobs"], strict=True):
            assert job["AlgorithmSpecification"]["TrainingImage"] == self.NEEDED[1]
            assert job["RoleArn"] == self.NEEDED[3]
            assert {**job["ResourceConfig"], "VolumeSizeInGB": 0} == {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 4,
                                                                      "KeepAlivePeriodInSeconds": 1800, "VolumeSizeInGB": 0}
            assert job["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600}
            assert job["VpcConfig"] == {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}
            channels = [(each["ChannelName"], each["DataSource"]["S3DataSource"]["S3Uri"]) for each in job["InputDataConfig"]]
            assert channels == [("training", "s3://b/data")]
            assert re.search("^[0-9a-f]{64}$", job["Environment"]["SHOAL_JOB_KEY"]), job["Environment"]["SHOAL_JOB_KEY"]
            assert job["ProfilerConfig"] == {"DisableProfiler": True}  # it would take time from the ranks
            assert "DebugHookConfig" not in job
            given = {name: json.loads(value) for name, value in job["HyperParameters"].items()}
            for name, value in (("model", model), ("steps", "500"), ("evaluate", ""), ("sagemaker_program", "sagemaker_entry.py"),
                                ("sagemaker_torch_distributed_enabled", True), ("sagemaker_instance_type", "ml.p4d.24xlarge")):
                assert given[name] == value
            place, files = next((place, files) for place, files in run["uploads"].items() if job["TrainingJobName"] in place)
            assert place.endswith(given["sagemaker_submit_directory"].split("/", 3)[3]), place
            assert given["sagemaker_program"] in files
        for part in ("ResourceConfig", "VpcConfig", "RoleArn"):  # these decide whether a job gets the instances of the job before
            assert run["jobs"][0][part] == run["jobs"][1][part]

    def test_parallel_jobs_all_start_first(self):
        run = self.runs["parallel"]
        assert run["code"] == 1
        assert self.order("parallel") == "CCdddd"
        assert [job["OutputDataConfig"]["S3OutputPath"] for job in run["jobs"]] == ["s3://o/x"] * 2
        for job in run["jobs"]:
            assert "KeepAlivePeriodInSeconds" not in job["ResourceConfig"]
        first, second = (job["TrainingJobName"] for job in run["jobs"])
        assert any(line.startswith(first) and "AlgorithmError: exit code 1" in line for line in run["messages"]), run["messages"]
        assert run["messages"][-2].startswith(second), run["messages"]
        assert re.search(rf"\b2\b.*\b1\b.*: {first}$", run["messages"][-1]), run["messages"]

    @pytest.mark.parametrize("name, calls", (("stopped", "Cdd"), ("continued", "CddCdd")))
    def test_failed_job_stops_list_unless_keep_going(self, name, calls):
        run = self.runs[name]
        assert (run["code"], self.order(name)) == (1, calls), run["messages"]
        assert "AlgorithmError: exit code 1" in " ".join(run["messages"])
        assert re.search(rf"\b2\b.*\b1\b.*: {run['jobs'][0]['TrainingJobName']}$", run["messages"][-1]), run["messages"]
        kept = "KeepAlivePeriodInSeconds" in run["jobs"][0]["ResourceConfig"]
        assert kept == (name == "continued")

    def test_image_starts_shoal_train_under_torchrun(self):
        """From the hyperparameters that the SDK sends to the command line of shoal_train, on the second of two hosts."""
        with tempfile.TemporaryDirectory() as folder:
            def write(path, text):
                os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
                with open(os.path.join(folder, path), "w", encoding="ascii") as file:
                    file.write(text)
                os.chmod(os.path.join(folder, path), 0o755)

            write("bin/nvidia-smi", "#!/bin/bash\nprintf 'GPU %d: x\\n' 0 1\n")
            write("bin/torchrun", '#!/bin/bash\necho "torchrun $*" >> "$LOG"\nwhile [[ $1 != *.py ]]; do shift; done\nexec python3 "$@"\n')
            write("bin/shoal_train", '#!/bin/bash\necho "shoal_train $*" >> "$LOG"\n')
            hosts = ["127.0.0.1", "127.0.0.2"]
            group = {"instance_group_name": "homogeneousCluster", "instance_type": "ml.p4d.24xlarge", "hosts": hosts}
            write("ml/input/config/resourceconfig.json", json.dumps({
                "current_host": hosts[1], "hosts": hosts, "network_interface_name": "eth0", "current_instance_type": group["instance_type"],
                "current_group_name": group["instance_group_name"], "instance_groups": [group]}))
            write("ml/input/config/inputdataconfig.json", json.dumps({"training": {"TrainingInputMode": "File"}}))
            write("ml/input/config/hyperparameters.json", json.dumps({**self.runs["pool"]["jobs"][1]["HyperParameters"],
                                                                      "sagemaker_submit_directory": json.dumps(AWS)}))
            module = re.search(r"SAGEMAKER_TRAINING_MODULE=(\S+)", text_of("Dockerfile"))[1]
            done = subprocess.run([sdk_environment() + "/bin/train"], capture_output=True, text=True, check=False, timeout=120,
                                  env={"PATH": f"{folder}/bin:{sdk_environment()}/bin:/usr/bin:/bin", "HOME": folder, "LOG": folder + "/log",
                                       "SAGEMAKER_BASE_DIR": folder + "/ml", "SAGEMAKER_TRAINING_MODULE": module})
            assert done.returncode == 0, done.stdout + done.stderr
            with open(folder + "/log", encoding="ascii") as file:
                assert file.read().splitlines() == [
                    "torchrun --nnodes 2 --nproc_per_node 2 --master_addr 127.0.0.1 --master_port 7777 --node_rank 1 sagemaker_entry.py "
                    "--evaluate  --model vgg11 --steps 500",
                    f"shoal_train --evaluate --model vgg11 --steps 500 --data {folder}/ml/input/data/training "
                    f"--json {folder}/ml/output/data/results.json"]
