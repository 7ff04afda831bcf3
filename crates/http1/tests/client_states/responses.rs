//! States of the client role from the content of a response on, to the end of the response.

use super::*;

#[test]
fn every_state_of_a_response_meets_every_event() {
    check(&[
        (
            "within content",
            |talk| {
                sends(talk, &GET);
                arrives(talk, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na");
            },
            &[
                (
                    "GET, if it may be sent",
                    "-> awaits Body, request done, 4 to come",
                ),
                ("content", "-> awaits Body, request done, 4 to come"),
                (
                    "content in place",
                    "-> awaits Body, request done, 4 to come",
                ),
                ("finish", "-> awaits Body, request done, 4 to come"),
                (
                    "finish with trailers",
                    "-> awaits Body, request done, 4 to come",
                ),
                ("abort", "-> awaits Body, request done, 4 to come"),
                (
                    "half a head",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "100",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "101",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 in chunks",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 to the end",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "200 and close",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "204",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "nonsense",
                    "data nons, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "two lengths",
                    "data HTTP, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "an end of chunks",
                    "data 0\\r\\n\\r, end, -> awaits Nothing, request done, response done, bytes left",
                ),
                (
                    "two bytes",
                    "data ab, -> awaits Body, request done, 2 to come",
                ),
                (
                    "a byte passes by",
                    "-> awaits Body, request done, 3 to come",
                ),
                ("closed", "BodyTruncated, -> awaits Nothing, request done"),
            ],
        ),
        (
            "between chunks",
            |talk| {
                sends(talk, &GET);
                arrives(
                    talk,
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
                );
            },
            &[
                (
                    "GET, if it may be sent",
                    "-> awaits Body, request done, between chunks",
                ),
                ("content", "-> awaits Body, request done, between chunks"),
                (
                    "content in place",
                    "-> awaits Body, request done, between chunks",
                ),
                ("finish", "-> awaits Body, request done, between chunks"),
                (
                    "finish with trailers",
                    "-> awaits Body, request done, between chunks",
                ),
                ("abort", "-> awaits Body, request done, between chunks"),
                (
                    "half a head",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "100",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "101",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 2 bytes",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 in chunks",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 to the end",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "200 and close",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "204",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "HTTP/1.0",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "nonsense",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "two lengths",
                    "Chunk(SizeInvalid), -> awaits Nothing, request done, bytes left",
                ),
                (
                    "an end of chunks",
                    "end, -> awaits Nothing, request done, response done, reusable",
                ),
                ("two bytes", "-> awaits Body, request done"),
                (
                    "a byte passes by",
                    "-> awaits Body, request done, between chunks",
                ),
                ("closed", "BodyTruncated, -> awaits Nothing, request done"),
            ],
        ),
        (
            "within content to the end",
            |talk| {
                sends(talk, &GET);
                arrives(talk, "HTTP/1.1 200 OK\r\n\r\na");
            },
            &[
                ("GET, if it may be sent", "-> awaits Body, request done"),
                ("content", "-> awaits Body, request done"),
                ("content in place", "-> awaits Body, request done"),
                ("finish", "-> awaits Body, request done"),
                ("finish with trailers", "-> awaits Body, request done"),
                ("abort", "-> awaits Body, request done"),
                (
                    "half a head",
                    "data HTTP/1.1 200, -> awaits Body, request done",
                ),
                (
                    "100",
                    "data HTTP/1.1 100 Continue\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "101",
                    "data HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: upgrade\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "200 of 2 bytes",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nab, -> awaits Body, request done",
                ),
                (
                    "200 of 9 bytes, cut",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\nab, -> awaits Body, request done",
                ),
                (
                    "200 in chunks",
                    "data HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n1\\r\\na\\r\\n0\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "200 to the end",
                    "data HTTP/1.1 200 OK\\r\\n\\r\\nab, -> awaits Body, request done",
                ),
                (
                    "200 and close",
                    "data HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: 0\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "204",
                    "data HTTP/1.1 204 No Content\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "HTTP/1.0",
                    "data HTTP/1.0 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "nonsense",
                    "data nonsense\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "two lengths",
                    "data HTTP/1.1 200 OK\\r\\nContent-Length: 1\\r\\nContent-Length: 2\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                (
                    "an end of chunks",
                    "data 0\\r\\n\\r\\n, -> awaits Body, request done",
                ),
                ("two bytes", "data ab, -> awaits Body, request done"),
                ("a byte passes by", "-> awaits Body, request done"),
                ("closed", "Body, -> awaits Nothing, request done"),
            ],
        ),
        (
            "answered early",
            |talk| {
                sends(talk, &POST);
                arrives(talk, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            },
            &[
                ("GET, if it may be sent", "-> awaits Nothing, response done"),
                ("content", "writes abc, -> awaits Nothing, response done"),
                (
                    "content in place",
                    "writes abc, -> awaits Nothing, response done",
                ),
                ("finish", "-> awaits Nothing, request done, response done"),
                (
                    "finish with trailers",
                    "-> awaits Nothing, request done, response done",
                ),
                ("abort", "-> awaits Nothing, request done, response done"),
                ("half a head", "Unsolicited, -> awaits Nothing, bytes left"),
                ("100", "Unsolicited, -> awaits Nothing, bytes left"),
                ("101", "Unsolicited, -> awaits Nothing, bytes left"),
                (
                    "200 of 2 bytes",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                (
                    "200 of 9 bytes, cut",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                (
                    "200 in chunks",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                (
                    "200 to the end",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                (
                    "200 and close",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                ("204", "Unsolicited, -> awaits Nothing, bytes left"),
                ("HTTP/1.0", "Unsolicited, -> awaits Nothing, bytes left"),
                ("nonsense", "Unsolicited, -> awaits Nothing, bytes left"),
                ("two lengths", "Unsolicited, -> awaits Nothing, bytes left"),
                (
                    "an end of chunks",
                    "Unsolicited, -> awaits Nothing, bytes left",
                ),
                ("two bytes", "Unsolicited, -> awaits Nothing, bytes left"),
                ("a byte passes by", "-> awaits Nothing, response done"),
                ("closed", "Nothing, -> awaits Nothing"),
            ],
        ),
        (
            "done",
            |talk| {
                sends(talk, &GET);
                arrives(talk, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            },
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
    ]);
}
