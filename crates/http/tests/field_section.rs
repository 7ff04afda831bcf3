//! Tests of field sections of HTTP/2 and HTTP/3, with the calls that an engine makes: the results of requests, responses
//! and trailers, and the errors of malformed ones.

use h2o_http::field_section::{
    DecodedField, FieldError, FieldName, Flaws, MAX_DECODED_FIELDS, MAX_FIELDS, MAX_TABLE_TEXT,
    NameKind, Refusal, RequestFields, RequestSection, ResponseFields, SectionError, SectionKind,
    set_path,
};
use h2o_http::{BodyLength, ClientResponse, Known, Method, RequestHead, Scheme};

/// A field without flaws, as a decoder hands it out.
fn decoded<'a>(name: &'a str, value: &'a str) -> DecodedField<'a> {
    let (kind, flaws) = NameKind::of(name.as_bytes());
    DecodedField {
        name: kind.spelt(|| name.as_bytes()),
        value: value.as_bytes(),
        flaws: flaws.and(Flaws::in_value(value.as_bytes())),
        never_indexed: false,
    }
}

type Fields<'a> = &'a [(&'a str, &'a str)];

/// The error of a malformed section: of one field, or of the section as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Malformed {
    Field(FieldError),
    Section(SectionError),
}

fn request(
    fields: Fields<'_>,
    end_stream: bool,
) -> Result<(RequestHead, RequestSection), Malformed> {
    let mut head = RequestHead::default();
    let mut section = RequestFields::of_request(&mut head, 10_000);
    for (name, value) in fields {
        section
            .field(&decoded(name, value))
            .map_err(Malformed::Field)?;
    }
    let section = section.finish(end_stream).map_err(Malformed::Section)?;
    Ok((head, section))
}

const GET: Fields<'static> = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/x?y"),
];

fn get_with(more: Fields<'_>) -> Result<(RequestHead, RequestSection), Malformed> {
    request(&[GET, more].concat(), true)
}

#[test]
fn a_request_becomes_a_head() {
    let (head, section) = get_with(&[("accept", "*/*"), ("x-a", "b"), ("host", "other.example")])
        .expect("the field section is valid");
    assert_eq!(
        (head.method.clone(), head.scheme),
        (Method::Get, Scheme::Https)
    );
    assert_eq!(
        head.authority(),
        b"a.example",
        "`:authority` takes precedence over `host`"
    );
    assert_eq!(head.target(), b"/x?y");
    assert_eq!(head.body, BodyLength::None);
    let fields: Vec<_> = head
        .headers
        .iter()
        .map(|field| (field.name.as_str().to_owned(), field.value.to_vec()))
        .collect();
    assert_eq!(
        fields,
        [
            ("accept".to_owned(), b"*/*".to_vec()),
            ("x-a".to_owned(), b"b".to_vec())
        ]
    );
    assert!(section.end_stream && section.refusal.is_none() && !section.is_tunnel);
    assert_eq!((section.content_length, section.priority), (None, None));

    let (head, _) = request(
        &[
            (":method", "GET"),
            (":scheme", "http"),
            (":path", "/"),
            ("host", "h.example"),
        ],
        true,
    )
    .expect("the field section is valid");
    assert_eq!(
        head.authority(),
        b"h.example",
        "`host` is used if `:authority` is absent"
    );
}

#[test]
fn content_is_announced_by_its_length_or_by_what_follows() {
    let cases: &[(Fields<'_>, bool, BodyLength)] = &[
        (&[], true, BodyLength::None),
        (&[], false, BodyLength::Unknown),
        (&[("content-length", "0")], true, BodyLength::Known(0)),
        (&[("content-length", "7")], false, BodyLength::Known(7)),
        (
            &[("content-length", "7"), ("content-length", "7")],
            false,
            BodyLength::Known(7),
        ),
    ];
    for (more, end_stream, want) in cases {
        let (head, section) =
            request(&[GET, more].concat(), *end_stream).expect("the field section is valid");
        assert_eq!(head.body, *want, "{more:?}");
        assert!(
            head.headers.get(Known::ContentLength).is_none() || section.content_length.is_some()
        );
    }
    let tunnel = &[(":method", "CONNECT"), (":authority", "b.example:443")];
    let (head, section) = request(tunnel, false).expect("the field section is valid");
    assert_eq!(
        (head.body, section.is_tunnel, head.target()),
        (BodyLength::Tunnel, true, &b"b.example:443"[..])
    );
}

#[test]
fn malformed_requests_have_different_errors() {
    use FieldError::*;
    let field = |error| Err(Malformed::Field(error));
    let section = |error| Err(Malformed::Section(error));
    let cases: &[(&str, Fields<'_>, Result<(), Malformed>)] = &[
        (
            "a field name in upper case",
            &[("X-A", "b")],
            field(UpperCaseName),
        ),
        (
            "a field of HTTP/1",
            &[("connection", "close")],
            field(ConnectionSpecific),
        ),
        (
            "transfer-encoding, a field of HTTP/1",
            &[("transfer-encoding", "chunked")],
            field(ConnectionSpecific),
        ),
        (
            "upgrade, a field of HTTP/1",
            &[("upgrade", "websocket")],
            field(ConnectionSpecific),
        ),
        (
            "te with more than trailers",
            &[("te", "gzip")],
            field(ConnectionSpecific),
        ),
        ("te with trailers", &[("te", "trailers")], Ok(())),
        (
            "a content-length that is no number",
            &[("content-length", "1x")],
            field(ContentLength),
        ),
        (
            "an empty content-length",
            &[("content-length", "")],
            field(ContentLength),
        ),
        (
            "a content-length with a sign",
            &[("content-length", "+1")],
            field(ContentLength),
        ),
        (
            "a content-length of twenty digits",
            &[("content-length", "12345678901234567890")],
            field(ContentLength),
        ),
        (
            "two different content-lengths",
            &[("content-length", "1"), ("content-length", "2")],
            field(ContentLength),
        ),
        (
            "a pseudo field behind a field",
            &[("x", "y"), (":path", "/")],
            field(PseudoField),
        ),
        (
            "a pseudo field twice",
            &[(":path", "/")],
            field(PseudoField),
        ),
        (
            "a pseudo field of responses",
            &[(":status", "200")],
            field(UnknownPseudoField),
        ),
        (
            "an unknown pseudo field",
            &[(":other", "x")],
            field(UnknownPseudoField),
        ),
        (
            "content is announced and does not follow",
            &[("content-length", "1")],
            section(SectionError::ContentLength),
        ),
        (
            "extended CONNECT with another method",
            &[(":protocol", "websocket")],
            section(SectionError::PseudoFields),
        ),
    ];
    for (what, more, want) in cases {
        assert_eq!(get_with(more).map(|_| ()), *want, "{what}");
    }
    let whole: &[(&str, Fields<'_>, Result<(), Malformed>)] = &[
        ("no fields at all", &[], section(SectionError::PseudoFields)),
        (
            "no path",
            &[(":method", "GET"), (":scheme", "https")],
            section(SectionError::PseudoFields),
        ),
        (
            "no scheme",
            &[(":method", "GET"), (":path", "/")],
            section(SectionError::PseudoFields),
        ),
        (
            "no method",
            &[(":scheme", "https"), (":path", "/")],
            section(SectionError::PseudoFields),
        ),
        (
            "an empty path",
            &[(":method", "GET"), (":scheme", "https"), (":path", "")],
            field(PseudoField),
        ),
        (
            "a method that is no token",
            &[(":method", "G T"), (":scheme", "https"), (":path", "/")],
            section(SectionError::Method),
        ),
        (
            "the scheme of CONNECT-UDP with another method",
            &[(":method", "GET"), (":scheme", "MASQUE"), (":path", "/")],
            section(SectionError::PseudoFields),
        ),
        (
            "CONNECT with a path",
            &[
                (":method", "CONNECT"),
                (":authority", "a:1"),
                (":path", "/"),
            ],
            section(SectionError::PseudoFields),
        ),
        (
            "CONNECT without a target",
            &[(":method", "CONNECT")],
            section(SectionError::PseudoFields),
        ),
    ];
    for (what, fields, want) in whole {
        assert_eq!(request(fields, true).map(|_| ()), *want, "{what}");
    }
}

#[test]
fn what_is_only_refused_is_read_to_its_end() {
    let cases: &[(&str, Fields<'_>, Refusal)] = &[
        ("a name with a blank", &[("a b", "c")], Refusal::NameInvalid),
        (
            "a value with a line end",
            &[("x", "a\r\nb")],
            Refusal::ValueInvalid,
        ),
        (
            "a value with a blank in front",
            &[("x", " a")],
            Refusal::ValueInvalid,
        ),
        (
            "an unknown expectation",
            &[("expect", "much")],
            Refusal::Expectation,
        ),
        (
            "of two refusals the first one counts",
            &[("x", "a\nb"), ("expect", "much")],
            Refusal::ValueInvalid,
        ),
    ];
    for (what, more, want) in cases {
        let (head, section) = get_with(&[more, &[("last", "field")][..]].concat())
            .expect("the field section is not malformed");
        assert_eq!(section.refusal, Some(*want), "{what}");
        let last = head.headers.iter().last().expect("the head has a field");
        assert_eq!(
            (last.name.as_str(), last.value),
            ("last", &b"field"[..]),
            "{what}: the field after it is kept"
        );
        assert!((400..500).contains(&want.answer().0.as_u16()), "{what}");
    }
    let bad_target = request(
        &[(":method", "GET"), (":scheme", "https"), (":path", "x")],
        true,
    )
    .expect("the field section is not malformed");
    assert_eq!(bad_target.1.refusal, Some(Refusal::PathInvalid));
    let bad_host = request(
        &[
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "a b"),
            (":path", "/"),
        ],
        true,
    );
    assert!(
        bad_host
            .expect("the field section is not malformed")
            .1
            .refusal
            .is_some()
    );
}

#[test]
fn fields_and_their_text_are_limited() {
    let field = decoded("x", "y");
    for (count, refused, flood) in [
        (MAX_FIELDS, false, false),
        (MAX_FIELDS + 1, true, false),
        (MAX_DECODED_FIELDS, true, false),
        (MAX_DECODED_FIELDS + 1, true, true),
    ] {
        let mut head = RequestHead::default();
        let mut section = RequestFields::of_request(&mut head, 10_000);
        for (name, value) in GET {
            section
                .field(&decoded(name, value))
                .expect("the field section is valid");
        }
        let last = (0..count)
            .map(|_| section.field(&field))
            .last()
            .expect("the head has a field");
        assert_eq!(
            last,
            if flood {
                Err(FieldError::Flood)
            } else {
                Ok(())
            },
            "{count}"
        );
        if !flood {
            let section = section
                .finish(true)
                .expect("the field section is not malformed");
            assert_eq!(section.refusal.is_some(), refused, "{count}");
            assert!(head.headers.len() <= MAX_FIELDS as usize, "{count}");
        }
    }
    // A section may decode to `MAX_TABLE_TEXT` bytes plus twice its length on the wire; more is an HPACK bomb.
    for (len, more, refused) in [
        (0, 0, false),
        (0, 1, true),
        (50, 100, false),
        (50, 101, true),
    ] {
        let mut head = RequestHead::default();
        let mut section = RequestFields::of_trailers(&mut head, len);
        let value = "v".repeat(MAX_TABLE_TEXT + more - 1);
        section
            .field(&decoded("x", &value))
            .expect("the field section is not malformed");
        assert_eq!(
            section.finish_trailers().is_some(),
            refused,
            "{len} bytes, {more} more"
        );
        assert_eq!(head.headers.is_empty(), refused);
    }
}

#[test]
fn cookie_crumbs_become_one_field() {
    let (head, _) = get_with(&[
        ("cookie", "a=b"),
        ("x", "y"),
        ("cookie", ""),
        ("cookie", "c=d"),
    ])
    .expect("the field section is valid");
    assert_eq!(head.headers.get(Known::Cookie), Some(&b"a=b; c=d"[..]));
    assert_eq!(head.headers.get_all(Known::Cookie).count(), 1);
}

#[test]
fn trailers_have_no_pseudo_fields_and_frame_nothing() {
    let trailers = |fields: Fields<'_>| {
        let mut head = RequestHead::default();
        let mut section = RequestFields::of_trailers(&mut head, 100);
        for (name, value) in fields {
            section.field(&decoded(name, value))?;
        }
        let refusal = section.finish_trailers();
        Ok((head.headers.len(), refusal))
    };
    assert_eq!(
        trailers(&[
            ("x", "y"),
            ("content-length", "5"),
            ("host", "a"),
            ("expect", "b")
        ]),
        Ok((1, None))
    );
    assert_eq!(trailers(&[(":path", "/")]), Err(FieldError::PseudoField));
    assert_eq!(
        trailers(&[("x", "a\nb")]),
        Ok((0, Some(Refusal::ValueInvalid)))
    );
}

/// Passes the fields to the collector of a response section of this kind. Returns the head or the error.
fn response(kind: SectionKind, fields: Fields<'_>) -> Result<ClientResponse, Malformed> {
    let mut head = ClientResponse::new();
    head.length = Some(99);
    let mut section = ResponseFields::new(kind, &mut head, 1_000);
    for (name, value) in fields {
        section
            .field(&decoded(name, value))
            .map_err(Malformed::Field)?;
    }
    section.finish().map_err(Malformed::Section)?;
    Ok(head)
}

#[test]
fn responses_are_read_and_malformed_ones_have_different_errors() {
    use SectionKind::{Discarded, Head, Trailers};
    let field = |error| Err(Malformed::Field(error));
    let section = |error| Err(Malformed::Section(error));
    // What the response head holds: the status, the value of `content-length`, and the number of fields.
    type Left = (u16, Option<u64>, usize);
    let cases: &[(&str, SectionKind, Fields<'_>, Result<Left, Malformed>)] = &[
        (
            "a head",
            Head,
            &[(":status", "204"), ("x", "y")],
            Ok((204, None, 1)),
        ),
        (
            "a response with content-length",
            Head,
            &[(":status", "200"), ("content-length", "7")],
            Ok((200, Some(7), 0)),
        ),
        (
            "fields that some servers send",
            Head,
            &[
                (":status", "200"),
                ("keep-alive", "1"),
                ("proxy-connection", "x"),
            ],
            Ok((200, None, 0)),
        ),
        (
            "no status",
            Head,
            &[("x", "y")],
            section(SectionError::StatusMissing),
        ),
        (
            "a status twice",
            Head,
            &[(":status", "200"), (":status", "200")],
            field(FieldError::ResponsePseudoField),
        ),
        (
            "a status behind a field",
            Head,
            &[("x", "y"), (":status", "200")],
            field(FieldError::ResponsePseudoField),
        ),
        (
            "a status of two digits",
            Head,
            &[(":status", "20")],
            field(FieldError::ResponsePseudoField),
        ),
        (
            "a status of four digits",
            Head,
            &[(":status", "2000")],
            field(FieldError::ResponsePseudoField),
        ),
        (
            "a status with a letter",
            Head,
            &[(":status", "2x0")],
            field(FieldError::ResponsePseudoField),
        ),
        (
            "a pseudo field of requests",
            Head,
            &[(":path", "/")],
            field(FieldError::ResponsePseudoField),
        ),
        (
            "a field of HTTP/1",
            Head,
            &[(":status", "200"), ("connection", "close")],
            field(FieldError::ConnectionSpecific),
        ),
        (
            "a length that is no number",
            Head,
            &[(":status", "200"), ("content-length", "x")],
            section(SectionError::Fields),
        ),
        (
            "a length twice",
            Head,
            &[
                (":status", "200"),
                ("content-length", "1"),
                ("content-length", "1"),
            ],
            section(SectionError::Fields),
        ),
        (
            "a value with a line end",
            Head,
            &[(":status", "200"), ("x", "a\nb")],
            section(SectionError::Fields),
        ),
        (
            "a name in upper case",
            Head,
            &[(":status", "200"), ("X", "a")],
            section(SectionError::Fields),
        ),
        (
            "trailers",
            Trailers,
            &[("x", "y"), ("content-length", "3")],
            Ok((200, None, 1)),
        ),
        (
            "trailers with a status",
            Trailers,
            &[(":status", "200")],
            field(FieldError::ResponsePseudoField),
        ),
        (
            "a section on a stream that has ended",
            Discarded,
            &[(":status", "2"), ("x", "y"), (":path", "/")],
            Ok((200, None, 0)),
        ),
    ];
    for (what, kind, fields, want) in cases {
        let got = response(*kind, fields)
            .map(|head| (head.status.as_u16(), head.length, head.headers.len()));
        assert_eq!(got, *want, "{what}");
    }
}

#[test]
fn a_path_is_exchanged_if_it_may_stand_for_itself() {
    let (mut head, _) = get_with(&[("x", "y")]).expect("the field section is valid");
    for (path, want) in [
        ("/other?q", true),
        ("*", true),
        ("other", false),
        ("", false),
        ("/a b", false),
        ("/a\0", false),
    ] {
        let before = head.target().to_vec();
        assert_eq!(set_path(&mut head, path.as_bytes()), want, "{path:?}");
        let want = if want {
            path.as_bytes().to_vec()
        } else {
            before
        };
        assert_eq!(head.target(), want, "{path:?}");
    }
    assert_eq!(head.headers.get(Known::Host), None);
    assert!(matches!(decoded("x", "y").name, FieldName::Other("x")));
}
