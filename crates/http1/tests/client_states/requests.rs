//! States of the client role before the content of a response: a request is sent, a head awaited, a tunnel offered or open.

use super::*;

#[test]
fn every_state_of_a_request_meets_every_event() {
    check(&[
        (
            "new",
            |_| {},
            &[
                (
                    "GET, if it may be sent",
                    "None, writes GET / HTTP/1.1\\r\\nhost: a.example\\r\\nconnection: keep-alive\\r\\n\\r\\n, -> awaits Head, request done",
                ),
                (
                    "content",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "content in place",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "finish",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "finish with trailers",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                ("abort", "-> awaits Nothing, request done, response done"),
                (
                    "half a head",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "100",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "101",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 in chunks",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 to the end",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 and close",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "204",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "nonsense",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two bytes",
                    "Unsolicited, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "a byte passes by",
                    "-> awaits Nothing, request done, response done, reusable",
                ),
                ("closed", "Nothing, -> awaits Nothing, request done"),
            ],
        ),
        (
            "awaiting a head",
            |talk| sends(talk, &GET),
            &[
                ("GET, if it may be sent", "-> awaits Head, request done"),
                ("content", "-> awaits Head, request done"),
                ("content in place", "-> awaits Head, request done"),
                ("finish", "-> awaits Head, request done"),
                ("finish with trailers", "-> awaits Head, request done"),
                ("abort", "-> awaits Head, request done"),
                ("half a head", "-> awaits Head, request done, bytes left"),
                ("100", "interim 100 Continue, -> awaits Head, request done"),
                (
                    "101",
                    "UnexpectedSwitch, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "200 OK, data ab, end, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "200 of 9 bytes, cut",
                    "200 OK, data ab, -> awaits Body, request done, 7 to come",
                ),
                (
                    "200 in chunks",
                    "200 OK, data a, end, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "200 to the end",
                    "200 OK, data ab, -> awaits Body, request done",
                ),
                (
                    "200 and close",
                    "200 OK, -> awaits Nothing, request done, response done",
                ),
                (
                    "204",
                    "204 No Content, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "HTTP/1.0",
                    "200 OK, -> awaits Nothing, request done, response done",
                ),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Framing(ContentLengthsDiffer), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two bytes",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                ("a byte passes by", "-> awaits Head, request done"),
                (
                    "closed",
                    "ClosedBeforeResponse, -> awaits Nothing, request done",
                ),
            ],
        ),
        (
            "within a head",
            |talk| {
                sends(talk, &GET);
                arrives(talk, "HTTP/1.1 20");
            },
            &[
                (
                    "GET, if it may be sent",
                    "-> awaits Head, request done, bytes left",
                ),
                ("content", "-> awaits Head, request done, bytes left"),
                (
                    "content in place",
                    "-> awaits Head, request done, bytes left",
                ),
                ("finish", "-> awaits Head, request done, bytes left"),
                (
                    "finish with trailers",
                    "-> awaits Head, request done, bytes left",
                ),
                ("abort", "-> awaits Head, request done, bytes left"),
                ("half a head", "-> awaits Head, request done, bytes left"),
                (
                    "100",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "101",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 in chunks",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 to the end",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 and close",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "204",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                ("an end of chunks", "200 , -> awaits Body, request done"),
                ("two bytes", "-> awaits Head, request done, bytes left"),
                (
                    "a byte passes by",
                    "-> awaits Head, request done, bytes left",
                ),
                (
                    "closed",
                    "HeadTruncated, -> awaits Nothing, request done, bytes left",
                ),
            ],
        ),
        (
            "awaiting a head, sending",
            |talk| sends(talk, &POST),
            &[
                ("GET, if it may be sent", "-> awaits Head"),
                ("content", "writes abc, -> awaits Head"),
                ("content in place", "writes abc, -> awaits Head"),
                ("finish", "-> awaits Head, request done"),
                ("finish with trailers", "-> awaits Head, request done"),
                ("abort", "-> awaits Head, request done"),
                ("half a head", "-> awaits Head, bytes left"),
                ("100", "interim 100 Continue, -> awaits Head"),
                ("101", "UnexpectedSwitch, -> awaits Nothing, bytes left"),
                (
                    "200 of 2 bytes",
                    "200 OK, data ab, end, -> awaits Nothing, response done",
                ),
                (
                    "200 of 9 bytes, cut",
                    "200 OK, data ab, -> awaits Body, 7 to come",
                ),
                (
                    "200 in chunks",
                    "200 OK, data a, end, -> awaits Nothing, response done",
                ),
                ("200 to the end", "200 OK, data ab, -> awaits Body"),
                ("200 and close", "200 OK, -> awaits Nothing, response done"),
                ("204", "204 No Content, -> awaits Nothing, response done"),
                ("HTTP/1.0", "200 OK, -> awaits Nothing, response done"),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                (
                    "two lengths",
                    "Framing(ContentLengthsDiffer), -> awaits Nothing, bytes left",
                ),
                (
                    "an end of chunks",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                (
                    "two bytes",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                ("a byte passes by", "-> awaits Head"),
                ("closed", "ClosedBeforeResponse, -> awaits Nothing"),
            ],
        ),
        (
            "awaiting a head, sending chunks",
            |talk| sends(talk, &CHUNKED),
            &[
                ("GET, if it may be sent", "-> awaits Head"),
                ("content", "writes 3\\r\\nabc\\r\\n, -> awaits Head"),
                (
                    "content in place",
                    "writes 3\\r\\nabc\\r\\n, -> awaits Head",
                ),
                (
                    "finish",
                    "writes 0\\r\\n\\r\\n, -> awaits Head, request done",
                ),
                (
                    "finish with trailers",
                    "writes 0\\r\\nx: y\\r\\n\\r\\n, -> awaits Head, request done",
                ),
                (
                    "abort",
                    "writes \\r\\n1\\r\\n, -> awaits Head, request done",
                ),
                ("half a head", "-> awaits Head, bytes left"),
                ("100", "interim 100 Continue, -> awaits Head"),
                ("101", "UnexpectedSwitch, -> awaits Nothing, bytes left"),
                (
                    "200 of 2 bytes",
                    "200 OK, data ab, end, -> awaits Nothing, response done",
                ),
                (
                    "200 of 9 bytes, cut",
                    "200 OK, data ab, -> awaits Body, 7 to come",
                ),
                (
                    "200 in chunks",
                    "200 OK, data a, end, -> awaits Nothing, response done",
                ),
                ("200 to the end", "200 OK, data ab, -> awaits Body"),
                ("200 and close", "200 OK, -> awaits Nothing, response done"),
                ("204", "204 No Content, -> awaits Nothing, response done"),
                ("HTTP/1.0", "200 OK, -> awaits Nothing, response done"),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                (
                    "two lengths",
                    "Framing(ContentLengthsDiffer), -> awaits Nothing, bytes left",
                ),
                (
                    "an end of chunks",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                (
                    "two bytes",
                    "StatusLineInvalid, -> awaits Nothing, bytes left",
                ),
                ("a byte passes by", "-> awaits Head"),
                ("closed", "ClosedBeforeResponse, -> awaits Nothing"),
            ],
        ),
        (
            "in a tunnel",
            |talk| {
                sends(talk, &CONNECT);
                arrives(talk, "HTTP/1.1 200 OK\r\n\r\n");
            },
            &[
                ("GET, if it may be sent", "-> awaits Tunnel"),
                ("content", "writes abc, -> awaits Tunnel"),
                ("content in place", "writes abc, -> awaits Tunnel"),
                ("finish", "-> awaits Tunnel, request done"),
                ("finish with trailers", "-> awaits Tunnel, request done"),
                ("abort", "-> awaits Tunnel, request done"),
                ("half a head", "data HTTP/1.1 200, -> awaits Tunnel"),
                (
                    "100",
                    "data HTTP/1.1 100 Continue\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "101",
                    "data HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: upgrade\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "200 of 2 bytes",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nab, -> awaits Tunnel",
                ),
                (
                    "200 of 9 bytes, cut",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\nab, -> awaits Tunnel",
                ),
                (
                    "200 in chunks",
                    "data HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n1\\r\\na\\r\\n0\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "200 to the end",
                    "data HTTP/1.1 200 OK\\r\\n\\r\\nab, -> awaits Tunnel",
                ),
                (
                    "200 and close",
                    "data HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: 0\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "204",
                    "data HTTP/1.1 204 No Content\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                (
                    "HTTP/1.0",
                    "data HTTP/1.0 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                ("nonsense", "data nonsense\\r\\n\\r\\n, -> awaits Tunnel"),
                (
                    "two lengths",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 1\\r\\nContent-Length: 2\\r\\n\\r\\n, -> awaits Tunnel",
                ),
                ("an end of chunks", "data 0\\r\\n\\r\\n, -> awaits Tunnel"),
                ("two bytes", "data ab, -> awaits Tunnel"),
                ("a byte passes by", "-> awaits Tunnel"),
                ("closed", "Tunnel, -> awaits Nothing"),
            ],
        ),
        (
            "offering an upgrade",
            |talk| sends(talk, &UPGRADE),
            &[
                ("GET, if it may be sent", "-> awaits Head, request done"),
                ("content", "-> awaits Head, request done"),
                ("content in place", "-> awaits Head, request done"),
                ("finish", "-> awaits Head, request done"),
                ("finish with trailers", "-> awaits Head, request done"),
                ("abort", "-> awaits Head, request done"),
                ("half a head", "-> awaits Head, request done, bytes left"),
                ("100", "interim 100 Continue, -> awaits Head, request done"),
                ("101", "101 Switching Protocols, -> awaits Tunnel"),
                (
                    "200 of 2 bytes",
                    "200 OK, data ab, end, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "200 of 9 bytes, cut",
                    "200 OK, data ab, -> awaits Body, request done, 7 to come",
                ),
                (
                    "200 in chunks",
                    "200 OK, data a, end, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "200 to the end",
                    "200 OK, data ab, -> awaits Body, request done",
                ),
                (
                    "200 and close",
                    "200 OK, -> awaits Nothing, request done, response done",
                ),
                (
                    "204",
                    "204 No Content, -> awaits Nothing, request done, response done, reusable",
                ),
                (
                    "HTTP/1.0",
                    "200 OK, -> awaits Nothing, request done, response done",
                ),
                (
                    "nonsense",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Framing(ContentLengthsDiffer), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two bytes",
                    "StatusLineInvalid, -> awaits Nothing, request done, bytes left",
                ),
                ("a byte passes by", "-> awaits Head, request done"),
                (
                    "closed",
                    "ClosedBeforeResponse, -> awaits Nothing, request done",
                ),
            ],
        ),
    ]);
}
