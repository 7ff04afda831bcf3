//! The planned exchanges of the simulation.

use h2o_http::{BodyLength, Headers, Known, Method, Name, RequestHead, StatusCode};
use h2o_http2::{ClientSettings, Settings};
use h2o_testkit::Random;

pub(crate) struct Plan {
    pub(crate) exchanges: Vec<Exchange>,
    pub(crate) client: ClientSettings,
    pub(crate) server: Settings,
    /// After how many requests the server begins the graceful shutdown; `None` if it does not.
    pub(crate) shut_down_after: Option<usize>,
}

pub(crate) struct Exchange {
    pub(crate) request: Request,
    pub(crate) response: Response,
}

pub(crate) struct Request {
    pub(crate) head: RequestHead,
    /// Whether the request consists of its head alone.
    pub(crate) is_bare: bool,
    pub(crate) content: Vec<u8>,
    pub(crate) trailers: Option<Headers>,
    /// After how many content bytes of the response the client cancels the request; `None` if it does not.
    pub(crate) cancelled_at: Option<usize>,
}

pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: Headers,
    pub(crate) interims: usize,
    pub(crate) is_length_known: bool,
    pub(crate) content: Vec<u8>,
    pub(crate) trailers: Option<Headers>,
    /// Whether the response begins before the content of the request is read.
    pub(crate) is_early: bool,
    /// After how many bytes of content the server aborts the response; `None` if it does not.
    pub(crate) aborted_at: Option<usize>,
}

const NAMES: &[&str] = &[
    "accept",
    "cookie",
    "etag",
    "x-a",
    "x-long-name-that-nobody-knows",
    "via",
    "date",
];

fn headers(random: &mut Random) -> Headers {
    let mut headers = Headers::new();
    let mut has_cookie = false;
    for _ in 0..random.below(9) {
        let name = random.pick(NAMES);
        // At most one `cookie` field is used, since the engine would join several.
        if name != "cookie" || !std::mem::replace(&mut has_cookie, true) {
            headers.push(Name::from_lower(name), &random.value());
        }
    }
    if random.once_in(30) {
        // Makes the field section so long that it may need several frames.
        let len = random.below(30_000);
        headers.push(Name::Other("x-long"), &vec![b'v'; len]);
    }
    headers
}

fn trailers(random: &mut Random) -> Option<Headers> {
    random.once_in(3).then(|| {
        let mut trailers = Headers::new();
        trailers.push(Known::ServerTiming, &random.value());
        trailers
    })
}

fn content(random: &mut Random, most: usize) -> Vec<u8> {
    let most = random.pick(&[1, 10, 100, most]);
    let len = random.below(most);
    random.bytes(len)
}

impl Exchange {
    fn new(random: &mut Random, at: usize, most: usize) -> Self {
        let methods = [
            Method::Get,
            Method::Head,
            Method::Post,
            Method::Put,
            Method::Other("X-Y".into()),
        ];
        let is_bare = random.once_in(2);
        let body = content(random, most);
        let content_of_request = if is_bare { Vec::new() } else { body };
        let mut head = RequestHead::default();
        head.method = methods[random.below(methods.len())].clone();
        head.headers = headers(random);
        if random.once_in(3) {
            let value = random.pick(&["u=0", "u=1, i", "u=7", "i", "nonsense"]);
            head.headers.push(Known::Priority, value.as_bytes());
        }
        let target = head.headers.store(format!("/{at}").as_bytes());
        head.set_target(target);
        let authority = head.headers.store(b"a.example");
        head.set_authority(authority);
        head.body = match random.below(2) {
            _ if is_bare => BodyLength::None,
            0 => BodyLength::Known(content_of_request.len() as u64),
            _ => BodyLength::Unknown,
        };
        let status = StatusCode::new(random.pick(&[200, 200, 200, 204, 304, 404, 599]))
            .expect("the number is a valid status code");
        let has_content = head.method != Method::Head && !status.is_bodyless();
        let body = content(random, most);
        let content = if has_content { body } else { Vec::new() };
        let request = Request {
            is_bare,
            trailers: if is_bare { None } else { trailers(random) },
            content: content_of_request,
            cancelled_at: random.once_in(8).then(|| random.below(content.len() + 1)),
            head,
        };
        let response = Response {
            status,
            headers: headers(random),
            interims: random.pick(&[0, 0, 0, 1, 3]),
            is_length_known: has_content && random.once_in(2),
            aborted_at: random.once_in(8).then(|| random.below(content.len() + 1)),
            trailers: if has_content { trailers(random) } else { None },
            is_early: random.once_in(4),
            content,
        };
        Self { request, response }
    }
}

impl Plan {
    /// Makes a random plan. `most` limits the bytes of each content.
    pub(crate) fn new(random: &mut Random, most: usize) -> Self {
        let client = ClientSettings {
            max_streams: u32::try_from(random.below(8) + 1).expect("the number fits into the type"),
            window: random.pick(&[1, 100, 5000, 65_535, 1 << 20]),
        };
        // The contents are shorter if the window of streams is one byte, since each byte then takes a frame and a
        // WINDOW_UPDATE.
        let most = if client.window == 1 {
            most.min(200)
        } else {
            most
        };
        let exchanges = (0..=random.below(16))
            .map(|at| Exchange::new(random, at, most))
            .collect();
        Self {
            exchanges,
            client,
            server: Settings {
                max_streams: u32::try_from(random.below(8) + 1)
                    .expect("the number fits into the type"),
                input_window: random.pick(&[65_535, 70_000, 1 << 24]),
                idle_timeout: std::time::Duration::from_secs(1_000_000),
                ..Settings::default()
            },
            shut_down_after: random.once_in(4).then(|| random.below(8) + 1),
        }
    }
}

/// The names and values of the fields.
pub(crate) fn list(headers: &Headers) -> Vec<(String, Vec<u8>)> {
    headers
        .iter()
        .map(|field| (field.name.as_str().to_owned(), field.value.to_vec()))
        .collect()
}
