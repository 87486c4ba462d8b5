"""What bench/aws holds, as far as it can be checked without AWS: shell, manifests against the table of instances, Dockerfile, SageMaker's jobs."""
import contextlib
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
        self.assertIn(replica["restartPolicy"], ("Never", "OnFailure", "Always", "ExitCode"))
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
        for arguments, words in ((("--models", "a b"), "is no name of a model"), (("--instance", "p4d.24xlarge"), "is not like ml.p4d"),
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


cases.main()
