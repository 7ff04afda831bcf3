//! The planned exchanges of the simulation.

use h2o_http::{BodyLength, Headers, Known, Method, Name, StatusCode};
use h2o_testkit::Random;

pub(crate) struct Plan {
    pub(crate) exchanges: Vec<Exchange>,
}

pub(crate) struct Exchange {
    pub(crate) request: Request,
    pub(crate) response: Response,
}

pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) target: Vec<u8>,
    pub(crate) host: &'static str,
    pub(crate) headers: Headers,
    pub(crate) body: BodyLength,
    pub(crate) content: Vec<u8>,
    pub(crate) keep_alive: bool,
    pub(crate) expects_continue: bool,
}

pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) reason: Option<&'static str>,
    pub(crate) headers: Headers,
    pub(crate) interims: usize,
    pub(crate) is_length_known: bool,
    pub(crate) content: Vec<u8>,
    pub(crate) has_trailers: bool,
    /// Whether the response starts before the body of the request is read.
    pub(crate) is_early: bool,
    /// After how many bytes of content the server aborts the response; `None` if it does not.
    pub(crate) aborted_at: Option<usize>,
}

/// Names for random fields. Fields that frame messages are left to the engine.
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
    for _ in 0..random.below(9) {
        let name = random.pick(NAMES);
        let value = random.value();
        if random.once_in(2) {
            headers.push(Name::from_lower(name), &value);
        } else {
            let name = headers.store(name.to_uppercase().as_bytes());
            let value = headers.store(&value);
            headers.push_stored(name, value);
        }
    }
    headers
}

/// Random content, mostly short and sometimes long.
fn content(random: &mut Random) -> Vec<u8> {
    let most = random.pick(&[1, 10, 100, 5000]);
    let len = random.below(most);
    random.bytes(len)
}

impl Request {
    fn new(random: &mut Random) -> Self {
        let methods = [
            Method::Get,
            Method::Head,
            Method::Post,
            Method::Put,
            Method::Other("X-Y".into()),
        ];
        let content = content(random);
        let body = match random.below(3) {
            0 => BodyLength::None,
            1 => BodyLength::Known(content.len() as u64),
            _ => BodyLength::Unknown,
        };
        let target = random.pick(&["/", "/a/b?c=d", "/%41%2e%2e/", "*", "/a//b/../c?"]);
        let is_long = random.once_in(10);
        let has_body = body != BodyLength::None;
        Self {
            method: methods[random.below(methods.len())].clone(),
            target: target.repeat(if is_long { 300 } else { 1 }).into_bytes(),
            host: random.pick(&["a.example", "b.example:8080", "[::1]:80"]),
            headers: headers(random),
            body,
            content: if has_body { content } else { Vec::new() },
            keep_alive: !random.once_in(5),
            expects_continue: has_body && random.once_in(4),
        }
    }
}

impl Response {
    fn new(random: &mut Random, request: &Request) -> Self {
        let status = StatusCode::new(random.pick(&[200, 200, 200, 204, 304, 404, 599]))
            .expect("the number is a valid status code");
        let content = content(random);
        let has_content = request.method != Method::Head && !status.is_bodyless();
        let abort_at = random.below(content.len() + 1);
        let aborts = has_content && random.once_in(8);
        let has_length = random.once_in(2);
        Self {
            status,
            reason: random.pick(&[None, Some("Fine"), Some("")]),
            headers: headers(random),
            interims: random.pick(&[0, 0, 0, 1, 3]),
            is_length_known: has_length,
            // The server does not abort after all content of known length: the client would have a complete response, even
            // if the connection is cut afterwards.
            aborted_at: (aborts && !(has_length && abort_at == content.len())).then_some(abort_at),
            content: if has_content { content } else { Vec::new() },
            has_trailers: random.once_in(3),
            is_early: random.once_in(4),
        }
    }

    pub(crate) fn trailers(&self) -> Option<Headers> {
        self.has_trailers.then(|| {
            let mut trailers = Headers::new();
            trailers.push(Known::ServerTiming, b"total;dur=1");
            trailers
        })
    }
}

impl Plan {
    pub(crate) fn new(random: &mut Random) -> Self {
        let exchanges = (0..=random.below(6))
            .map(|_| {
                let request = Request::new(random);
                let response = Response::new(random, &request);
                Exchange { request, response }
            })
            .collect();
        Self { exchanges }
    }
}

/// The names and values of the fields, without `connection`, which is hop-by-hop.
pub(crate) fn list(headers: &Headers) -> Vec<(String, Vec<u8>)> {
    headers
        .iter()
        .filter(|field| field.name != Name::Known(Known::Connection))
        .map(|field| (field.name.as_str().to_owned(), field.value.to_vec()))
        .collect()
}
