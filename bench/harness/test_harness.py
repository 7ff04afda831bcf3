"""Tests of the parts that need no server: `python3 -m unittest discover bench`."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from . import cases, drivers, http2, process, servers, site, stats
from .cases import Case
from .drivers import H2load, LoadFailed

BENCH = Path(__file__).parents[1]
CASE = """\
title = "x"
group = "x"
shows = "x"
driver = "h2load"
scheme = "http"
path = "/1k.txt"
connections = 10
figure = "cpu_us_per_request"
"""

GOOD = """\
TLS Protocol: TLSv1.3
Cipher: TLS_AES_128_GCM_SHA256
Server Temp Key: X25519 253 bits
finished in 612.50ms, 3265.31 req/s, 3.97MB/s
requests: 2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 2000 2xx, 0 3xx, 0 4xx, 0 5xx
"""
TRAFFIC = "traffic: 2.03MB (2126200) total, 87.89KB (90000) headers (space savings 80.1%), 1.91MB (2000000) data\n"


class Harness(unittest.TestCase):
    def test_h2load_output_is_believed_only_if_all_went_well(self):
        case = SimpleNamespace(scheme="https", status=200, protocol="h1", tls="1.3", suite="TLS_AES_128_GCM_SHA256")
        self.assertAlmostEqual(H2load.judge(GOOD, case, 2000), 0.6125)
        for wrong in (
            GOOD.replace("2000 succeeded, 0 failed", "1999 succeeded, 1 failed"),
            GOOD.replace("2000 2xx, 0 3xx", "0 2xx, 2000 3xx"),
            GOOD.replace("TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
            GOOD.replace("finished", "stopped"),
            "",
        ):
            with self.assertRaises(LoadFailed):
                H2load.judge(wrong, case, 2000)

    def test_h2load_must_have_spoken_http2_and_received_whole_bodies(self):
        case = SimpleNamespace(scheme="https", status=200, protocol="h2", tls="1.3", suite="TLS_AES_128_GCM_SHA256")
        with self.assertRaisesRegex(LoadFailed, "HTTP/2"):
            H2load.judge(GOOD + "Application protocol: http/1.1\n", case, 2000)
        self.assertAlmostEqual(H2load.judge(GOOD + "Application protocol: h2\n", case, 2000), 0.6125)
        told = H2load.traffic(TRAFFIC, 2000, 1000)
        self.assertEqual(told, {"header_octets_per_response": 45.0, "octets_per_response": 1063.1})
        with self.assertRaisesRegex(LoadFailed, "1000.0 octets on average, not 1001"):
            H2load.traffic(TRAFFIC, 2000, 1001)

    def test_http3_cases_have_the_driver_and_the_link_they_need(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "100-x.toml"
            good = CASE.replace("h2load", "h3load").replace('"http"', '"https"') + 'protocol = "h3"\n'
            path.write_text(good)
            self.assertEqual(Case.load(path).needs(), {"h3", "tls13"})
            for wrong in (
                good.replace("h3load", "h2load"),
                good.replace('"https"', '"http"'),
                good + 'tls = "1.2"\nsuite = "ECDHE-ECDSA-AES128-GCM-SHA256"\n',
                good + 'mode = "page"\n',
                good + "link = { kbit = 8000, round_trip_ms = 80, queue_kb = 64 }\n",
            ):
                path.write_text(wrong)
                with self.assertRaises(ValueError):
                    Case.load(path)

    def test_h3load_must_have_resumed_what_it_should(self):
        case = SimpleNamespace(mode="resumed")
        drivers.H3load.judge({"reused": 980}, case, 1000)
        with self.assertRaisesRegex(LoadFailed, "900 of 1000"):
            drivers.H3load.judge({"reused": 900}, case, 1000)
        with self.assertRaisesRegex(LoadFailed, "1000 of 1000"):
            drivers.H3load.judge({"reused": 1000}, SimpleNamespace(mode="full"), 1000)

    def test_http2_status_is_read_as_servers_write_it(self):
        for block, status in (
            ("88", 200),
            ("20884803", 200),  # after a change of the table's size
            ("4803333031", 301),  # a literal that is not compressed
            ("48826401", 301),  # and one that is
            ("088264017f", 301),
            ("4e82640100", 301),  # named by another field of the same name
        ):
            self.assertEqual(http2.status(bytes.fromhex(block)), status, block)
        for wrong in ("", "48", "8f", "48821fff", "4803303178"):
            with self.assertRaises(http2.Refused):
                http2.status(bytes.fromhex(wrong))

    def test_spread_has_the_middle_and_both_ends(self):
        spread = stats.Spread.of([3.0, 1.0, 2.0, 10.0, 2.0])
        self.assertEqual((spread.low, spread.median, spread.high), (1.0, 2.0, 10.0))
        self.assertEqual((spread.quarter, spread.three_quarters), (2.0, 3.0))
        self.assertEqual(stats.Spread.of([7.0]).high, 7.0)

    def test_ratio_is_taken_round_by_round(self):
        mine, theirs = [{"n": 1.0}, {"n": 4.0}, {"n": 3.0}], [{"n": 2.0}, {"n": 4.0}, {"n": 4.0}]
        ratio = stats.ratio(mine, theirs, "n")
        self.assertEqual((ratio.low, ratio.median, ratio.high), (0.5, 0.75, 1.0))

    def test_template_with_an_unknown_name_is_an_error(self):
        self.assertEqual(servers.fill_in("port: @p@;", {"p": 80}), "port: 80;")
        with self.assertRaises(KeyError):
            servers.fill_in("@q@", {"p": 80})

    def test_case_with_an_unknown_setting_is_an_error(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "01-x.toml"
            path.write_text('title = "x"\nfigure = "cpu_ms_per_gb"\nconections = 3\n')
            with self.assertRaisesRegex(ValueError, "conections"):
                Case.load(path)

    def load(self, text, name="01-x.toml"):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / name
            path.write_text(text)
            return Case.load(path)

    def test_case_is_refused_with_the_reason(self):
        self.assertEqual(self.load(CASE, "10-name-of-it.toml").name, "name-of-it")
        for more, reason in (
            ('tls = "1.1"', "tls must be one of 1.2, 1.3"),
            ('tls = "1.2"', "TLS 1.2 has no suite TLS_AES"),
            ('suite = "ECDHE-ECDSA-AES128-GCM-SHA256"', "TLS 1.3 has no suite ECDHE"),
            ('files = "many"', "files must be of the kind int"),
            ("files = 3", "path must be /many"),
            ("streams = 3", "only HTTP/2"),
            ('mode = "full"', "mode must be one of ''"),
            ('backend = "apache"', "backend must be one of nginx, h2o, itself, fastcgi"),
            ('backend = "nginx"\nfloor = true', "proxies are asked by the driver h2load"),
            ("limits = { peers = 1.0 }", "limits are peer and floor"),
            ("limits = { floor = 1.0 }", "needs floor = true"),
            ('compare = { with = "y", metric = "gb_per_second" }', "compare needs"),
            ('compare = { with = "y", metric = "speed", at_most = 1.0 }', "metric must be one of"),
            ('compare = { with = "y", metric = "gb_per_second", at_most = 1.0 }', "`together` is missing"),
        ):
            with self.assertRaisesRegex(ValueError, f"01-x.toml: .*{reason}"):
                self.load(CASE + more)
        with self.assertRaisesRegex(ValueError, "/2k.txt is not a file"):
            self.load(CASE.replace("/1k.txt", "/2k.txt"))

    def test_only_cases_of_a_batch_are_compared(self):
        compare = 'together = "t"\ncompare = { with = "a", metric = "gb_per_second", at_most = 1.0 }\n'
        alone, with_it = self.load(CASE, "1-a.toml"), self.load(CASE + 'together = "t"\n', "1-a.toml")
        other = self.load(CASE + compare, "2-b.toml")
        cases.check_comparisons([with_it, other])
        for wrong in ([alone, other], [other], [with_it, with_it]):
            with self.assertRaises(ValueError):
                cases.check_comparisons(wrong)
        first = self.load(CASE, "0-first.toml")
        named = [[case.name for case in batch] for batch in cases.batches([with_it, first, other])]
        self.assertEqual(named, [["a", "b"], ["first"]])

    def test_every_case_and_server_here_is_sound(self):
        every = cases.load_all(BENCH / "cases")
        needs = set().union(*(case.needs() for case in every))
        for case in every:
            self.assertIn(case.driver, drivers.DRIVERS)
            self.assertIn("{url}" if case.driver == "h2load" and not case.hosts else "PORT", self.command(case))
            figures = {other.figure for other in every if other.group == case.group}
            self.assertEqual(len(figures), 1, f"{case.group} has one chart")
        for server in servers.load_all(BENCH / "servers"):
            self.assertLessEqual(set(server.lacks), needs, server.name)
            mine = [case for case in every if server.takes_part(case) and not server.left_out(case)]
            setups = {servers.Setup.of(case) for case in mine}
            for setup in setups:
                self.assertTrue(server.tls.get(setup.tls) or setup.tls == "1.3" or server.role != "peer", server.name)
                self.assertTrue(server.host or not setup.hosts, server.name)
                texts = (server.proxy_template, *server.proxy_command)
                if setup.backend == cases.FASTCGI:
                    texts = (server.fastcgi_template, *server.fastcgi_command)
                knows_backend = any("@backend_port@" in text for text in texts)
                self.assertTrue(knows_backend or not setup.backend, server.name)

    @staticmethod
    def command(case):
        return drivers.DRIVERS[case.driver](None, 1).command(case)

    def test_needs_of_a_case_leave_servers_out(self):
        case = self.load(CASE.replace("/1k.txt", "/10m.bin").replace('"http"', '"https"') + 'protocol = "h2"\n')
        self.assertEqual(case.needs(), {"h2", "tls13", "bulk"})
        spec = {"name": "x", "title": "x", "role": "peer", "binary": None, "wanted": "x", "version_args": []}
        server = servers.Server(**spec, command=[], template="", lacks={"h2c": "not at all", "bulk": "too large"})
        self.assertEqual(server.left_out(case), "too large")
        self.assertIsNone(server.left_out(self.load(CASE)))

    def test_proxies_and_file_servers_take_part_in_what_they_are(self):
        plain, behind = self.load(CASE), self.load(CASE + 'backend = "itself"\n')
        self.assertEqual(behind.needs(), {"h1", "proxy", "proxy-to-itself"})
        self.assertEqual(self.load(CASE + 'backend = "nginx"\n').needs(), {"h1", "proxy"})
        self.assertNotEqual(servers.Setup.of(plain), servers.Setup.of(behind))
        spec = {"name": "x", "title": "x", "binary": None, "wanted": "x", "version_args": []}
        proxy = servers.Server(**spec, role="peer", command=[], template="", proxy_only=True)
        floor = servers.Server(**spec, role="floor", command=[], template="")
        peer = servers.Server(**spec, role="peer", command=[], template="")
        self.assertEqual([server.takes_part(plain) for server in (proxy, floor, peer)], [False, False, True])
        self.assertEqual([server.takes_part(behind) for server in (proxy, floor, peer)], [True, False, True])

    def test_what_cannot_be_built_is_told(self):
        spec = {"name": "x", "title": "x", "role": "peer", "binary": None, "version_args": []}
        with tempfile.TemporaryDirectory() as directory:
            target = Path(directory) / "made" / "it"
            for command, reason in (
                (["no-such-program"], "no-such-program is not installed"),
                (["sh", "-c", "echo bad source >&2; exit 1"], "bad source"),
                (["sh", "-c", "install -m 755 /dev/null $0", "@target@"], None),
            ):
                built = {"directory": "go-proxy", "command": command}
                server = servers.Server(**spec, wanted=str(target), command=[], template="", built=built)
                self.assertEqual(server.build(), reason)
                self.assertEqual(server.binary, None if reason else str(target))

    def test_command_line_offers_one_version_and_suite(self):
        suite = "ECDHE-ECDSA-CHACHA20-POLY1305"
        case = self.load(CASE.replace('"http"', '"https"') + f'tls = "1.2"\nsuite = "{suite}"\n')
        self.assertEqual(
            self.command(case), f"h2load -t1 -c10 -nN --h1 --ciphers={suite} --groups=X25519:P-256 {{url}}"
        )
        case = self.load(CASE.replace("/1k.txt", "/host-1k.txt") + "hosts = 10\n")
        self.assertEqual(
            self.command(case),
            "h2load -t1 -c10 -nN --h1 --connect-to=127.0.0.1:PORT http://host-0009.example/host-1k.txt",
        )

    def test_size_of_a_file_is_in_its_name(self):
        sizes = {"/6b.txt": 6, "/513k.bin": 513 * 1024, "/10m.bin": 10_000_000, "/many/256b/00000.txt": 256}
        for path, size in sizes.items():
            self.assertEqual(site.size_of_name(path), size)
            self.assertEqual(len(site.content(path, size)), size)
        self.assertIsNone(site.size_of_name("/moved"))

    def test_percentiles_are_durations_that_occurred(self):
        found = drivers.percentiles(list(range(100, 0, -1)))
        self.assertEqual(list(found.values()), [50, 90, 99, 100])
        self.assertEqual(set(drivers.percentiles([7]).values()), {7})

    def test_client_that_says_nothing_is_given_up(self):
        for command, line in ((["sleep", "5"], ""), (["echo", "ready"], "ready"), (["true"], "")):
            client = process.spawn(command, min(os.sched_getaffinity(0)), stdout=subprocess.PIPE)
            self.assertEqual(process.first_line(client, 0.5), line)
            process.stop(client)
            client.stdout.close()


if __name__ == "__main__":
    unittest.main()
