"""Tests of what counting instructions needs besides valgrind: arithmetic and comparison."""

import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import micro

CALLGRIND = """\
==4711== Events    : Ir
==4711== Collected : 792513
==4711==
==4711== I   refs:      792,513
"""


def entry(instructions, recorded, name="text/mime"):
    return {"name": name, "title": "MIME", "instructions": instructions, "recorded": recorded}


class Micro(unittest.TestCase):
    def test_the_count_is_taken_from_the_end_of_the_output(self):
        self.assertEqual(micro.collected(CALLGRIND), 792513)
        for wrong in ("", CALLGRIND.replace("Collected", "Rejected")):
            with self.assertRaises(micro.MicroFailed):
                micro.collected(wrong)

    def test_what_both_runs_need_cancels(self):
        start = 1_000_000
        few, more = start + micro.FEW * 275, start + micro.MORE * 275
        self.assertEqual(micro.per_operation(few, more), 275.0)
        self.assertEqual(micro.per_operation(few, more + (micro.MORE - micro.FEW) // 5), 275.2)

    def test_both_runs_of_a_case_are_made_with_its_own_name(self):
        asked = []

        def run(command, **_):
            asked.append(command[-3:])
            return mock.Mock(stderr=f"==1== Collected : {7 * int(command[-1]) + 5000}\n")

        with mock.patch.object(micro, "run", run):
            self.assertEqual(micro.count(micro.Case("/b/text-1f", "text/mime", "MIME")), 7.0)
        self.assertEqual(asked, [["/b/text-1f", "mime", str(times)] for times in (micro.FEW, micro.MORE)])

    def test_more_than_three_per_cent_is_too_much(self):
        for instructions, recorded, want in (
            (1030.0, 1000.0, False),
            (1031.0, 1000.0, True),
            (500.0, 1000.0, False),
            # A tolerance of 2 instructions applies where 3 % of the count would be less.
            (22.0, 20.0, False),
            (22.1, 20.0, True),
            (1e6, None, False),
        ):
            self.assertEqual(micro.is_too_high(entry(instructions, recorded)), want, (instructions, recorded))

    def test_the_table_tells_the_change_and_what_is_new(self):
        head, *lines = micro.table([entry(1100.0, 1000.0), entry(990.0, 1000.0), entry(7.0, None)])
        self.assertTrue(head.startswith("case"))
        self.assertEqual(
            [line.split() for line in lines],
            [
                ["text/mime", "1100.0", "1000.0", "+10.0", "%", "too", "high"],
                ["text/mime", "990.0", "1000.0", "-1.0", "%"],
                ["text/mime", "7.0", "-", "new"],
            ],
        )

    def test_another_toolchain_and_cases_that_are_gone_are_told(self):
        record = {"recorded_with": {"rustc": "1.95", "libc": "2.36"}, "instructions": {"text/mime": 1, "text/old": 2}}
        same = {"rustc": "1.95", "libc": "2.36"}
        self.assertEqual(
            list(micro.remarks([entry(1, 1)], record, same)), ["Micro-benchmarks: recorded, but not run: text/old."]
        )
        (told,) = micro.remarks([entry(1, 1), entry(2, 2, "text/old")], record, {**same, "rustc": "1.96"})
        self.assertIn("another rustc;", told)
        empty = {"recorded_with": {}, "instructions": {}}
        self.assertEqual(list(micro.remarks([entry(1, None)], empty, same)), [])

    def test_programs_are_found_in_the_messages_of_cargo(self):
        messages = [
            {"reason": "compiler-artifact", "target": {"kind": ["lib"], "name": "h2o_http"}, "executable": None},
            {"reason": "compiler-artifact", "target": {"kind": ["bench"], "name": "text"}, "executable": "/b/text-1f"},
            {"reason": "build-finished", "success": True},
        ]
        self.assertEqual(micro.built_programs("\n".join(map(json.dumps, messages))), {"text": "/b/text-1f"})

    def test_without_valgrind_there_is_a_note_and_nothing_else(self):
        notes = []
        with tempfile.TemporaryDirectory() as nothing, mock.patch.dict(os.environ, {"PATH": nothing}):
            self.assertEqual(micro.measure(notes), [])
        self.assertIn("valgrind is not installed", notes[0])

    def test_a_record_is_read_as_it_was_written(self):
        now = {"rustc": "1.95"}
        with tempfile.TemporaryDirectory() as directory:
            with mock.patch.object(micro, "RECORD", Path(directory) / "recorded.json"):
                self.assertEqual(micro.load_record()["instructions"], {})
                micro.write_record([entry(990.5, 1000.0)], now)
                self.assertEqual(
                    micro.load_record(), {"recorded_with": now, "instructions": {"text/mime": 990.5}}
                )
                micro.write_record([entry(980.0, 990.5)], now, {"text/mime": 990.5, "hpack/long": 5.0})
                self.assertEqual(
                    micro.load_record()["instructions"], {"hpack/long": 5.0, "text/mime": 980.0}
                )
