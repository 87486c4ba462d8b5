"""`shoal topology` on trees like /sys of machines that are not here: text, JSON, picture, and hosts in the network's order."""
import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml

import cases

SHOAL = os.path.join(cases.BUILD, "bin/shoal")
MAKE = os.path.join(cases.BUILD, "bin/make_fake_machine")
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    environment.update(SHOAL_METADATA_URL="off", **variables)
    return subprocess.run([SHOAL, "topology", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


class Topology(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def tree(self, kind):
        path = os.path.join(self.folder.name, kind)
        os.mkdir(path)
        subprocess.run([MAKE, kind, path], check=True, timeout=60)
        return path

    def test_text_says_what_was_found_and_what_is_used(self):
        done = run("--root", self.tree("p5"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("machine  p5.48xlarge (DMI product name), i-0fedcba9876543210", done.stdout)
        self.assertIn("32 x 100 Gbit/s EFA v2 (RDMA read and write), 4 a GPU, 3200 Gbit/s in all; 75 us", done.stdout)
        self.assertRegex(done.stdout, r"7 +0000:ca:00.0 +1 +84-94,180-190 +95,191 +rdmap198s0, .*rdmap201s0 \(same PCIe switch\)")
        self.assertNotIn("note:", done.stdout)

    def test_what_the_ranks_are_told_counts(self):
        tree = self.tree("p5")
        done = run("--root", tree, SHOAL_PROGRESS_CORES="off", SHOAL_RAILS="rdmap79s0-rdm")
        self.assertRegex(done.stdout, r"\n0 +0000:53:00.0 +0 +0-11,96-107 +any \(SHOAL_PROGRESS_CORES=off\) ")
        self.assertIn("note: SHOAL_RAILS=rdmap79s0-rdm: every rank uses these", done.stdout)
        done = run("--root", tree, "--ranks", "2", SHOAL_PROGRESS_CORES="5,7")
        self.assertRegex(done.stdout, r"\n1 +0000:64:00.0 .* 7 +rdmap")
        done = run("--root", tree, "--ranks", "97")
        self.assertIn("any (none to spare)", done.stdout)
        done = run(SHOAL_PROGRESS_CORES="far")
        self.assertEqual(done.returncode, 1)
        self.assertIn("SHOAL_PROGRESS_CORES='far' is none of near, last and off", done.stderr)

    def test_json(self):
        done = run("--root", self.tree("p4d"), "--json", "--instance", "p5.48xlarge")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual((found["type"], found["type_origin"]), ("p5.48xlarge", "SHOAL_INSTANCE_TYPE"))
        self.assertEqual(len(found["gpus"]), 8)
        self.assertEqual([nic["name"] for nic in found["nics"] if nic["used"]], ["rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27"])
        self.assertEqual(found["ranks"][3]["nics"], ["rdmap32s27"])
        self.assertEqual(found["ranks"][3]["shares_nics_with"], 1)
        self.assertEqual((found["ranks"][4]["progress_cores"], found["ranks"][4]["progress_cores_are"]), ([29, 77], "near the NIC"))
        self.assertTrue(any("4 EFA devices are here, p5.48xlarge has 32" in note for note in found["notes"]), found["notes"])

    def test_picture(self):
        for kind, ranks in (("p5", 8), ("laptop", 3), ("plain", 1)):
            with self.subTest(kind=kind):
                path = os.path.join(self.folder.name, kind + ".svg")
                done = run("--root", self.tree(kind), "--svg", path, "--ranks", str(ranks))
                self.assertEqual(done.returncode, 0, done.stderr)
                svg = xml.parse(path).getroot()
                self.assertEqual(svg.tag, SVG + "svg")
                width, height = (float(number) for number in svg.get("viewBox").split()[2:])
                for each in svg.iter(SVG + "rect"):
                    if each.get("x"):
                        self.assertLessEqual(float(each.get("x")) + float(each.get("width")), width)
                        self.assertLessEqual(float(each.get("y")) + float(each.get("height")), height)
                words = [each.text for each in svg.iter(SVG + "text")]
                for rank in range(ranks):
                    self.assertIn(f"rank {rank}", words)
                style = svg.find(SVG + "style").text
                self.assertIn("prefers-color-scheme:dark", style)
                self.assertIn("@media print", style)

    def test_names_cannot_break_the_picture(self):
        path = os.path.join(self.folder.name, "x.svg")
        done = run("--root", self.tree("plain"), "--svg", path, "--instance", '<b>"&')
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(any('<b>"&' in (each.text or "") for each in xml.parse(path).getroot().iter(SVG + "text")))

    def test_this_machine(self):
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("machine ", done.stdout)

    def test_order_of_hosts(self):
        topology = os.path.join(self.folder.name, "topology.json")
        with open(topology, "w", encoding="utf-8") as file:
            json.dump({"Instances": [{"InstanceId": f"i-{i}", "NetworkNodes": ["a", "b", f"leaf{i % 2}"]} for i in range(4)]}, file)
        done = run("--rank-order", topology, "--hosts", "i-0,i-1,x,i-2,i-3")
        self.assertEqual(done.stdout.split(), ["i-0", "i-2", "i-1", "i-3", "x"])
        self.assertIn("does not have x", done.stderr)
        done = run("--rank-order", f"|cat {topology}", "--hosts", "i-3,i-2,i-1")
        self.assertEqual(done.stdout.split(), ["i-3", "i-1", "i-2"])

    def test_errors(self):
        for arguments, words in ((("--rank-order", "none.json"), "needs the --hosts"), (("--hosts", "a"), "needs the --rank-order"),
                                 (("--rank-order", "none.json", "--hosts", "a"), "No such file"),
                                 (("--svg", "/no/such/folder/x.svg"), "open /no/such/folder/x.svg")):
            with self.subTest(arguments=arguments):
                done = run(*arguments)
                self.assertEqual(done.returncode, 1)
                self.assertIn(words, done.stderr)
        done = run(SHOAL_METADATA_TIMEOUT="soon")
        self.assertEqual(done.returncode, 1)
        self.assertIn("SHOAL_METADATA_TIMEOUT='soon'", done.stderr)


cases.main()
