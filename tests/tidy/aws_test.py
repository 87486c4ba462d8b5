"""What bench/aws holds, as far as it can be checked without AWS: shell, manifests against the table of instances, Dockerfile, SageMaker's jobs; and
manifests and jobs by the packages of those who take them, where `bench/setup aws-sdk` has put these."""
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
import unittest

import cases

AWS = os.path.join(cases.REPOSITORY, "bench/aws")
SHOAL = os.path.join(cases.BUILD, "bin/shoal")


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
    with open(os.path.join(cases.REPOSITORY, "bench/setup"), encoding="utf-8") as file:
        return file.read()


def sdk_environment():
    """Where bench/setup puts Amazon's and Kubeflow's packages; None where they are not."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    version = re.search(r"^sagemaker_version=(\S+)", setup_text(), re.MULTILINE)[1]
    venv = f"{cache}/shoal/venv-aws-{version}"
    return venv if glob.glob(f"{venv}/lib/python3*/site-packages/sagemaker-{version}.dist-info") else None


def need_sdk(case):
    if not sdk_environment():
        case.skipTest("no SDK (bench/setup aws-sdk)")


@functools.cache
def ask_sdk(part, given):
    """What aws_sdk.py finds, in JSON as it is given."""
    with tempfile.TemporaryDirectory() as home:  # the user's AWS settings stay out of it
        done = subprocess.run([sdk_environment() + "/bin/python", "-B", os.path.join(cases.REPOSITORY, "tests/tidy/aws_sdk.py"), part], input=given,
                              env={"PATH": "/usr/bin:/bin", "HOME": home}, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise AssertionError(f"aws_sdk.py {part} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout


def sdk(part, given):
    return json.loads(ask_sdk(part, json.dumps(given)))


class Shell(unittest.TestCase):
    def test_shellcheck(self):
        if not shutil.which("shellcheck"):
            self.skipTest("no shellcheck (bench/setup test-packages)")
        done = subprocess.run(["shellcheck", os.path.join(AWS, "slurm.sbatch")], capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout)


class Slurm(unittest.TestCase):
    """The batch script among programs that only say how they were called."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = folder.name
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

    def test_checks_then_runs(self):
        done, calls = self.run_script("shoal_train", "--model", "resnet18", ORDER="0")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertEqual(calls, ["srun --nodes=3 --ntasks-per-node=1 --label shoal doctor --machine key 64",
                                 "srun --nodes=3 --ntasks=6 --cpu-bind=none --kill-on-bad-exit=1 shoal_train --model resnet18 key 64"])
        self.assertNotRegex(done.stdout + done.stderr, r"[0-9a-f]{64}")  # the key stays to itself

    def test_an_unfit_machine_stops_it_unless_told_otherwise(self):
        done, calls = self.run_script(ORDER="0", UNFIT="1")
        self.assertEqual((done.returncode, len(calls)), (1, 1))
        self.assertIn("a machine is unfit", done.stdout)
        done, calls = self.run_script(ORDER="0", UNFIT="1", CHECK="0")
        self.assertEqual(done.returncode, 0)
        self.assertIn("shoal_perf -b 8 -e 1G -f 4", calls[-1])

    def test_the_order_of_the_network(self):
        if not os.path.exists(SHOAL):
            self.skipTest("shoal is not built")
        instances = {"Reservations": [{"Instances": [{"InstanceId": f"i-{i}", "PrivateIpAddress": f"10.0.0.{i}"} for i in (1, 2, 3)]}]}
        topology = {"Instances": [{"InstanceId": f"i-{i}", "NetworkNodes": ["a", "b", leaf]} for i, leaf in ((1, "x"), (2, "y"), (3, "x"))]}
        self.program("aws", f"case \"$2\" in describe-instances) echo '{json.dumps(instances)}' ;; *) echo '{json.dumps(topology)}' ;; esac")
        done, calls = self.run_script(CONTAINER="me/shoal:aws")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertIn("--distribution=arbitrary", calls[-1])
        self.assertIn("--container-image=me/shoal:aws", calls[-1])
        self.assertIn("hosts: q-1 q-1 q-3 q-3 q-2 q-2", calls[-1])
        self.assertIn("in the network's order: q-1 q-3 q-2", done.stdout)

    def test_without_an_answer_it_goes_on(self):
        self.program("aws", "echo denied >&2; exit 254")
        done, calls = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("EC2 does not say where the nodes are", done.stdout)
        self.assertNotIn("arbitrary", calls[-1])


class Kubernetes(unittest.TestCase):
    def manifest(self, name):
        try:
            import yaml  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("no PyYAML (bench/setup test-packages: python3-yaml)")
        documents = list(yaml.safe_load_all(text_of("kubernetes/" + name)))
        self.assertEqual(len(documents), 1)
        return documents[0]

    def check_worker(self, pod):
        """A pod with GPUs: what it asks for is what its type has, and it has what EFA needs."""
        self.assertEqual(len(pod["containers"]), 1)
        container = pod["containers"][0]
        row = instance(pod["nodeSelector"]["node.kubernetes.io/instance-type"])
        resources = container["resources"]
        self.assertEqual(resources["limits"]["nvidia.com/gpu"], row["gpus"])
        self.assertEqual(resources["limits"]["vpc.amazonaws.com/efa"], row["efa_cards"])
        for name in ("nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"):  # Kubernetes refuses extended resources that differ
            self.assertEqual(resources["limits"][name], resources["requests"][name])
        self.assertRegex(resources["limits"]["hugepages-2Mi"], r"^\d+Mi$")
        self.assertIn("memory", resources["requests"])  # huge pages need it or cpu
        self.assertIn("IPC_LOCK", container["securityContext"]["capabilities"]["add"])
        volumes = {volume["name"] for volume in pod["volumes"]}
        for mount in container["volumeMounts"]:
            self.assertIn(mount["name"], volumes)
        return row

    def check_frame(self, manifest, version, kind):
        self.assertEqual((manifest["apiVersion"], manifest["kind"]), (version, kind))
        self.assertRegex(manifest["metadata"]["name"], r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
        self.assertEqual(set(manifest), {"apiVersion", "kind", "metadata", "spec"})

    def check_replica(self, replica):
        self.assertEqual(set(replica), {"replicas", "restartPolicy", "template"})
        self.assertGreaterEqual(replica["replicas"], 1)
        self.assertIn(replica["restartPolicy"], ("Never", "OnFailure"))  # MPIJob knows no others
        return replica["template"]["spec"]

    def test_pytorch_job(self):
        manifest = self.manifest("pytorchjob.yaml")
        self.check_frame(manifest, "kubeflow.org/v1", "PyTorchJob")
        spec = manifest["spec"]
        self.assertEqual(set(spec), {"nprocPerNode", "runPolicy", "pytorchReplicaSpecs"})
        self.assertEqual(set(spec["pytorchReplicaSpecs"]), {"Master", "Worker"})
        self.assertEqual(spec["pytorchReplicaSpecs"]["Master"]["replicas"], 1)
        for replica in spec["pytorchReplicaSpecs"].values():
            pod = self.check_replica(replica)
            row = self.check_worker(pod)
            self.assertEqual(spec["nprocPerNode"], str(row["gpus"]))
            container = pod["containers"][0]
            self.assertEqual(container["name"], "pytorch")
            self.assertIn("torchrun --no-python shoal_train", container["args"][0])
            key = {each["name"]: each for each in container["env"]}["SHOAL_JOB_KEY"]
            self.assertIn("secretKeyRef", key["valueFrom"])
            self.assertNotIn("value", key)

    def test_mpi_job(self):
        manifest = self.manifest("mpijob.yaml")
        self.check_frame(manifest, "kubeflow.org/v2beta1", "MPIJob")
        spec = manifest["spec"]
        self.assertEqual(set(spec), {"slotsPerWorker", "sshAuthMountPath", "runPolicy", "mpiReplicaSpecs"})
        launcher = self.check_replica(spec["mpiReplicaSpecs"]["Launcher"])
        row = self.check_worker(self.check_replica(spec["mpiReplicaSpecs"]["Worker"]))
        self.assertEqual(spec["slotsPerWorker"], row["gpus"])
        arguments = launcher["containers"][0]["args"]
        self.assertEqual(launcher["containers"][0]["command"], ["mpirun"])
        self.assertEqual(arguments[arguments.index("-N") + 1], str(row["gpus"]))
        self.assertIn("shoal_perf", arguments)
        self.assertTrue(all(isinstance(each, str) for each in arguments))

    def test_the_operators_classes_know_every_field(self):
        """Read and written again, nothing may be lost: the classes drop what they do not know and turn values into the type of the field."""
        need_sdk(self)
        pytorch = quantities_as_text(self.manifest("pytorchjob.yaml"))
        mpi = quantities_as_text(self.manifest("mpijob.yaml"))
        del mpi["spec"]["sshAuthMountPath"]  # there are classes of v1 only, which had no such field; the others are the same
        wrong = []

        def plant(change):
            wrong.append(copy.deepcopy(pytorch))
            change(wrong[-1]["spec"], wrong[-1]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"])

        plant(lambda spec, pod: spec.update(nProcPerNode=spec.pop("nprocPerNode")))
        plant(lambda spec, pod: spec["runPolicy"].update(cleanPods="Running"))
        plant(lambda spec, pod: pod.update(nodeSelectors={}))
        plant(lambda spec, pod: pod["containers"][0].update(volumeMount=[]))
        plant(lambda spec, pod: pod["containers"][0]["env"][0]["valueFrom"]["secretKeyRef"].update(secret="x"))
        plant(lambda spec, pod: spec.update(nprocPerNode=8))  # a text
        plant(lambda spec, pod: pod["containers"][0].pop("name"))  # must be there
        written = sdk("manifests", [["KubeflowOrgV1PyTorchJob", pytorch], ["KubeflowOrgV1MPIJob", mpi]] +
                      [["KubeflowOrgV1PyTorchJob", each] for each in wrong])
        self.assertEqual(written[:2], [pytorch, mpi])
        for before, after in zip(wrong, written[2:], strict=True):
            self.assertNotEqual(before, after)


def quantities_as_text(node):
    """Kubernetes takes numbers for quantities, its classes keep text."""
    if isinstance(node, list):
        return [quantities_as_text(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {key: {name: str(each) for name, each in value.items()} if key in ("requests", "limits") else quantities_as_text(value)
            for key, value in node.items()}


def dockerfile_complaints(text, exists):
    """Rules for a Dockerfile. `exists`: whether a path of the checkout is there."""
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
            complaints.append("ADD fetches and unpacks what nobody has checked")
        elif word not in ("ARG", "ENV", "WORKDIR", "CMD", "ENTRYPOINT", "EXPOSE", "USER", "LABEL"):
            complaints.append(f"unknown instruction {word}")
    return complaints


class Dockerfile(unittest.TestCase):
    def test_the_recipe(self):
        text = text_of("Dockerfile")
        self.assertEqual(dockerfile_complaints(text, lambda path: os.path.exists(os.path.join(cases.REPOSITORY, path))), [])
        self.assertIn("--skip-kmod", text)  # the driver is the host's
        self.assertIn("gpg --batch --verify", text)
        for name in ("shoal_train", "shoal topology", '"shoal", "doctor"'):
            self.assertIn(name, text)
        for name, version in re.findall(r'"(sagemaker-[a-z-]+)==([\d.]+)"', text):  # what is tested is what the image has
            self.assertIn(f" {name.replace('-', '_')}=={version}", setup_text())

    def test_its_checker_finds_what_is_wrong(self):
        for text in ("FROM debian\n", "FROM debian:latest\n", "FROM debian:12\nRUN a | b\n", "FROM debian:12\nCOPY no/such /x\n",
                     "FROM debian:12\nCOPY --from=none /a /b\n", "FROM debian:12\nRUN apt-get install -y x\n", "FROM debian:12\nADD http://x /y\n",
                     "FROM debian:12\nRUN apt-get update\n", "FROM debian:12\nRUN curl -O https://x\n", "FROM debian:12\nFROB x\n"):
            with self.subTest(text=text):
                self.assertTrue(dockerfile_complaints(text, lambda path: False))


class Estimator:
    """Stands in for the SDK's class."""
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


class SageMaker(unittest.TestCase):
    NEEDED = ("--image", "1.dkr.ecr.us-east-1.amazonaws.com/shoal:aws-sagemaker", "--role", "arn:aws:iam::1:role/x")

    def setUp(self):
        self.submit = load("sagemaker_submit")
        Estimator.made = []
        Estimator.fails = ()
        self.said = []
        sdk = types.ModuleType("sagemaker")
        sdk.pytorch = types.ModuleType("sagemaker.pytorch")
        sdk.pytorch.PyTorch = Estimator
        for name, module in (("sagemaker", sdk), ("sagemaker.pytorch", sdk.pytorch)):
            sys.modules[name] = module
            self.addCleanup(sys.modules.pop, name, None)

    def main(self, *arguments):
        return self.submit.main([*self.NEEDED, *arguments], self.said.append)

    def test_one_after_another_on_a_warm_pool(self):
        self.assertEqual(self.main("--models", "resnet18,vgg11,densenet121", "--nodes", "4", "--data", "s3://b/data", "--", "--steps", "500"), 0)
        self.assertEqual([job.arguments["hyperparameters"] for job in Estimator.made],
                         [{"model": name, "steps": "500"} for name in ("resnet18", "vgg11", "densenet121")])
        first = Estimator.made[0].arguments
        for job in Estimator.made:
            self.assertEqual(job.arguments["keep_alive_period_in_seconds"], 1800)
            self.assertTrue(job.call["wait"])
            self.assertEqual(job.call["inputs"], {"training": "s3://b/data"})
            # A warm pool serves jobs that differ in nothing that matters to instances.
            self.assertEqual({**job.arguments, "hyperparameters": None}, {**first, "hyperparameters": None})
        self.assertEqual(first["distribution"], {"torch_distributed": {"enabled": True}})
        self.assertEqual((first["instance_type"], first["instance_count"]), ("ml.p4d.24xlarge", 4))
        self.assertGreaterEqual(len(first["environment"]["SHOAL_JOB_KEY"]), 64)
        self.assertTrue(os.path.exists(os.path.join(first["source_dir"], first["entry_point"])))
        self.assertEqual(len({job.call["job_name"] for job in Estimator.made}), 3)
        for job in Estimator.made:
            self.assertRegex(job.call["job_name"], r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")  # as the service wants it

    def test_side_by_side(self):
        Estimator.fails = ("vgg11",)
        self.assertEqual(self.main("--models", "resnet18,vgg11", "--parallel"), 1)
        for job in Estimator.made:
            self.assertFalse(job.call["wait"])
            self.assertNotIn("keep_alive_period_in_seconds", job.arguments)  # nothing follows that could use it
            self.assertEqual(job.waited, "None")
        self.assertIn("2 jobs, 1 failed: " + Estimator.made[1].call["job_name"], self.said[-1])

    def test_a_failure_stops_the_list_unless_told_otherwise(self):
        Estimator.fails = ("resnet18",)
        self.assertEqual(self.main("--models", "resnet18,vgg11"), 1)
        self.assertEqual(len(Estimator.made), 1)
        self.assertEqual(self.main("--models", "resnet18,vgg11", "--keep-going"), 1)
        self.assertEqual(len(Estimator.made), 3)

    def test_dry_run_needs_no_sdk(self):
        sys.modules["sagemaker"] = None  # an import of it fails
        sys.modules["sagemaker.pytorch"] = None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.assertEqual(self.main("--dry-run", "--keep-alive", "0", "--subnets", "subnet-1", "--security-groups", "sg-1",
                                       "--", "--evaluate", "--lr=0.1"), 0)
        job, = json.loads(printed.getvalue())
        self.assertEqual(job["estimator"]["hyperparameters"], {"model": "resnet18", "evaluate": "", "lr": "0.1"})
        self.assertEqual(job["estimator"]["security_group_ids"], ["sg-1"])
        self.assertNotIn("keep_alive_period_in_seconds", job["estimator"])
        self.assertEqual(self.main(), 2)
        self.assertIn("the SageMaker SDK is missing", self.said[-1])
        self.assertEqual(Estimator.made, [])

    def test_what_is_refused(self):
        for arguments, words in ((("--keep-alive", "21601"), "at most 21600"),
                                 (("--models", "a b"), "is no name of a model"), (("--instance", "p4d.24xlarge"), "is not like ml.p4d"),
                                 (("--nodes", "0"), "at least 1"), (("--subnets", "s"), "go together"), (("--data", "/x"), "s3://"),
                                 (("--", "steps"), "is no option"), (("--", "--model", "x"), "--models"), (("--name", "n" * 60), "longer than")):
            with self.subTest(arguments=arguments):
                self.assertEqual(self.main(*arguments), 2)
                self.assertIn(words, self.said[-1])
        self.assertEqual(Estimator.made, [])

    def test_the_entry_point_becomes_the_trainer(self):
        command = load("sagemaker_entry").command
        self.assertEqual(command(["--model", "vgg11", "--evaluate", "", "--steps", "5"],
                                 {"SM_CHANNEL_TRAINING": "/data", "SM_OUTPUT_DATA_DIR": "/out"}),
                         ["shoal_train", "--model", "vgg11", "--evaluate", "--steps", "5", "--data", "/data", "--json", "/out/results.json"])
        self.assertEqual(command(["--json", "x", "--data", "y"], {"SM_CHANNEL_TRAINING": "/data"}), ["shoal_train", "--json", "x", "--data", "y"])


class SageMakerSdk(unittest.TestCase):
    """The same with the real SDK, which asks a stand-in for AWS; and SageMaker's toolkit in the image, which starts programs that only log."""
    NEEDED = ("--image", "123456789012.dkr.ecr.us-east-1.amazonaws.com/shoal:aws-sagemaker", "--role", "arn:aws:iam::123456789012:role/x")
    MODELS = (*NEEDED, "--models", "resnet18,vgg11")
    RUNS = {
        "pool": {"arguments": [*MODELS, "--nodes", "4", "--data", "s3://b/data", "--max-run", "3600", "--subnets", "subnet-1,subnet-2",
                               "--security-groups", "sg-1", "--", "--steps", "500", "--evaluate"], "fails": []},
        "parallel": {"arguments": [*MODELS, "--parallel", "--output", "s3://o/x"], "fails": ["resnet18"]},
        "stopped": {"arguments": [*MODELS, "--keep-alive", "0"], "fails": ["resnet18"]},
        "going on": {"arguments": [*MODELS, "--keep-going", "--instance", "ml.c5n.18xlarge"], "fails": ["resnet18"]},
    }

    def setUp(self):
        need_sdk(self)
        self.runs = dict(zip(self.RUNS, sdk("submit", list(self.RUNS.values())), strict=True))

    def order(self, run):
        """Of the calls about jobs."""
        return "".join({"CreateTrainingJob": "C", "DescribeTrainingJob": "d"}.get(call, "") for call in self.runs[run]["calls"])

    def test_the_service_would_take_every_request(self):
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
        self.assertEqual(found[:len(jobs)], [[]] * len(jobs))
        for complaints in found[len(jobs):]:
            self.assertEqual(len(complaints), 1, complaints)

    def test_one_after_another_on_a_warm_pool(self):
        run = self.runs["pool"]
        self.assertEqual(run["code"], 0, run["said"])
        self.assertEqual(self.order("pool"), "CddCdd")
        for model, job in zip(("resnet18", "vgg11"), run["jobs"], strict=True):
            self.assertEqual(job["AlgorithmSpecification"]["TrainingImage"], self.NEEDED[1])
            self.assertEqual(job["RoleArn"], self.NEEDED[3])
            self.assertEqual({**job["ResourceConfig"], "VolumeSizeInGB": 0}, {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 4,
                                                                              "KeepAlivePeriodInSeconds": 1800, "VolumeSizeInGB": 0})
            self.assertEqual(job["StoppingCondition"], {"MaxRuntimeInSeconds": 3600})
            self.assertEqual(job["VpcConfig"], {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]})
            self.assertEqual([(each["ChannelName"], each["DataSource"]["S3DataSource"]["S3Uri"]) for each in job["InputDataConfig"]],
                             [("training", "s3://b/data")])
            self.assertRegex(job["Environment"]["SHOAL_JOB_KEY"], "^[0-9a-f]{64}$")
            self.assertEqual(job["ProfilerConfig"], {"DisableProfiler": True})  # it would run beside the ranks
            self.assertNotIn("DebugHookConfig", job)
            given = {name: json.loads(value) for name, value in job["HyperParameters"].items()}
            for name, value in (("model", model), ("steps", "500"), ("evaluate", ""), ("sagemaker_program", "sagemaker_entry.py"),
                                ("sagemaker_torch_distributed_enabled", True), ("sagemaker_instance_type", "ml.p4d.24xlarge")):
                self.assertEqual(given[name], value)
            place, files = next((place, files) for place, files in run["uploads"].items() if job["TrainingJobName"] in place)
            self.assertTrue(place.endswith(given["sagemaker_submit_directory"].split("/", 3)[3]), place)
            self.assertIn(given["sagemaker_program"], files)
        for part in ("ResourceConfig", "VpcConfig", "RoleArn"):  # what decides whether a job gets the instances of the one before
            self.assertEqual(run["jobs"][0][part], run["jobs"][1][part])

    def test_side_by_side(self):
        run = self.runs["parallel"]
        self.assertEqual(run["code"], 1)
        self.assertEqual(self.order("parallel"), "CCdddd")
        self.assertEqual([job["OutputDataConfig"]["S3OutputPath"] for job in run["jobs"]], ["s3://o/x"] * 2)
        for job in run["jobs"]:
            self.assertNotIn("KeepAlivePeriodInSeconds", job["ResourceConfig"])
        first, second = (job["TrainingJobName"] for job in run["jobs"])
        self.assertTrue(any(line.startswith(f"{first} failed: ") and "AlgorithmError: exit code 1" in line for line in run["said"]), run["said"])
        self.assertEqual(run["said"][-2:], [f"{second} is done", f"2 jobs, 1 failed: {first}"])

    def test_a_failure_stops_the_list_unless_told_otherwise(self):
        for name, calls in (("stopped", "Cdd"), ("going on", "CddCdd")):
            run = self.runs[name]
            self.assertEqual((run["code"], self.order(name)), (1, calls), run["said"])
            self.assertIn("AlgorithmError: exit code 1", " ".join(run["said"]))
            self.assertEqual(run["said"][-1], f"2 jobs, 1 failed: {run['jobs'][0]['TrainingJobName']}")
        self.assertNotIn("KeepAlivePeriodInSeconds", self.runs["stopped"]["jobs"][0]["ResourceConfig"])

    def test_the_image_starts_the_trainer_under_torchrun(self):
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
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(folder + "/log", encoding="ascii") as file:
                self.assertEqual(file.read().splitlines(), [
                    "torchrun --nnodes 2 --nproc_per_node 2 --master_addr 127.0.0.1 --master_port 7777 --node_rank 1 sagemaker_entry.py "
                    "--evaluate  --model vgg11 --steps 500",
                    f"shoal_train --evaluate --model vgg11 --steps 500 --data {folder}/ml/input/data/training "
                    f"--json {folder}/ml/output/data/results.json"])


cases.main()
