"""Tests of what needs no server: `python3 -m unittest discover bench`."""

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from . import http2, servers, stats
from .cases import Case
from .drivers import H2load, LoadFailed

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


if __name__ == "__main__":
    unittest.main()
