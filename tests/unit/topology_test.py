"""`shoal topology` on fake trees like /sys of other machines: text, JSON, picture, and hosts in the network's order."""
import json
import os
import re
import subprocess
import xml.etree.ElementTree as xml

import pytest

import support

SHOAL = os.path.join(support.BUILD, "bin/shoal")
MAKE = os.path.join(support.BUILD, "bin/make_fake_machine")
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment.update(SHOAL_METADATA_URL="off", **variables)
    return subprocess.run([SHOAL, "topology", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


class TestTopology:
    @pytest.fixture(autouse=True)
    def new_folder(self, folder):
        self.folder = folder

    def tree(self, kind):
        path = os.path.join(self.folder, kind)
        os.mkdir(path)
        subprocess.run([MAKE, kind, path], check=True, timeout=60)
        return path

    def test_text_has_the_machine_and_the_ranks(self):
        done = run("--root", self.tree("p5"))
        assert done.returncode == 0, done.stderr
        assert re.search(r"(?m)^machine +p5.48xlarge .*i-0fedcba9876543210$", done.stdout), done.stdout
        assert re.search(r"(?m)^table .*32 x 100 Gbit/s EFA v2 .*\b4 a GPU, 3200 Gbit/s.* 75 us$", done.stdout), done.stdout
        assert re.search(r"(?m)^7 +0000:ca:00.0 +1 +84-94,180-190 +95,191 +rdmap198s0, .*rdmap201s0", done.stdout), done.stdout
        assert "note:" not in done.stdout

    def test_settings_of_the_ranks_are_used(self):
        tree = self.tree("p5")
        done = run("--root", tree, SHOAL_PROGRESS_CORES="off", SHOAL_RAILS="rdmap79s0-rdm")
        assert re.search(r"\n0 +0000:53:00.0 +0 +0-11,96-107 +any \(SHOAL_PROGRESS_CORES=off\) ", done.stdout), done.stdout
        assert "note: SHOAL_RAILS=rdmap79s0-rdm" in done.stdout
        done = run("--root", tree, "--ranks", "2", SHOAL_PROGRESS_CORES="5,7")
        assert re.search(r"\n1 +0000:64:00.0 .* 7 +rdmap", done.stdout), done.stdout
        done = run("--root", tree, "--ranks", "97")
        assert re.search(r"\n96 .* any \(", done.stdout), done.stdout  # one rank more than half of the 192 cores: none is left
        done = run(SHOAL_PROGRESS_CORES="far")
        assert done.returncode == 1
        assert re.search("SHOAL_PROGRESS_CORES='far'.*near.*last.*off", done.stderr), done.stderr

    def test_json(self):
        done = run("--root", self.tree("p4d"), "--json", "--instance", "p5.48xlarge")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["type"], found["type_origin"]) == ("p5.48xlarge", "SHOAL_INSTANCE_TYPE")
        assert len(found["gpus"]) == 8
        assert [nic["name"] for nic in found["nics"] if nic["used"]] == ["rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27"]
        assert found["ranks"][3]["nics"] == ["rdmap32s27"]
        assert found["ranks"][3]["shares_nics_with"] == 1
        assert found["ranks"][4]["progress_cores"] == [29, 77]
        assert "NIC" in found["ranks"][4]["progress_cores_are"]
        assert any(re.search(r"\b4 EFA devices.*p5.48xlarge.* 32", note) for note in found["notes"]), found["notes"]

    @pytest.mark.parametrize("kind, ranks", (("p5", 8), ("laptop", 3), ("plain", 1)))
    def test_picture(self, kind, ranks):
        path = os.path.join(self.folder, kind + ".svg")
        done = run("--root", self.tree(kind), "--svg", path, "--ranks", str(ranks))
        assert done.returncode == 0, done.stderr
        svg = xml.parse(path).getroot()
        assert svg.tag == SVG + "svg"
        width, height = (float(number) for number in svg.get("viewBox").split()[2:])
        for each in svg.iter(SVG + "rect"):
            if each.get("x"):
                assert float(each.get("x")) + float(each.get("width")) <= width
                assert float(each.get("y")) + float(each.get("height")) <= height
        words = [each.text for each in svg.iter(SVG + "text")]
        for rank in range(ranks):
            assert f"rank {rank}" in words
        style = svg.find(SVG + "style").text
        assert "prefers-color-scheme:dark" in style
        assert "@media print" in style

    def test_names_are_escaped_in_the_picture(self):
        path = os.path.join(self.folder, "x.svg")
        done = run("--root", self.tree("plain"), "--svg", path, "--instance", '<b>"&')
        assert done.returncode == 0, done.stderr
        assert any('<b>"&' in (each.text or "") for each in xml.parse(path).getroot().iter(SVG + "text"))

    def test_this_machine(self):
        done = run()
        assert done.returncode == 0, done.stderr
        assert "machine " in done.stdout

    def test_order_of_hosts(self):
        topology = os.path.join(self.folder, "topology.json")
        with open(topology, "w", encoding="utf-8") as file:
            json.dump({"Instances": [{"InstanceId": f"i-{i}", "NetworkNodes": ["a", "b", f"leaf{i % 2}"]} for i in range(4)]}, file)
        done = run("--rank-order", topology, "--hosts", "i-0,i-1,x,i-2,i-3")
        assert done.stdout.split() == ["i-0", "i-2", "i-1", "i-3", "x"]
        assert re.search(r" x\b", done.stderr), done.stderr  # the only host that the tree does not have
        assert "i-" not in done.stderr
        done = run("--rank-order", f"|cat {topology}", "--hosts", "i-3,i-2,i-1")
        assert done.stdout.split() == ["i-3", "i-1", "i-2"]

    @pytest.mark.parametrize("arguments, expected", (
        (("--rank-order", "none.json"), "--hosts"), (("--hosts", "a"), "--rank-order"),
        (("--rank-order", "none.json", "--hosts", "a"), "none.json: No such file"),
        (("--svg", "/no/such/folder/x.svg"), "/no/such/folder/x.svg: No such file")), ids=("no-hosts", "no-order", "no-file", "no-folder"))
    def test_errors(self, arguments, expected):
        done = run(*arguments)
        assert done.returncode == 1
        assert expected in done.stderr

    def test_a_bad_setting_is_named(self):
        done = run(SHOAL_METADATA_TIMEOUT="soon")
        assert done.returncode == 1
        assert "SHOAL_METADATA_TIMEOUT='soon'" in done.stderr
