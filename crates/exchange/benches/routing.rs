//! Measures what it costs to find the host and the path of a request.

#[path = "../../../bench/micro/kit.rs"]
mod kit;

use std::hint::black_box;

use h2o_exchange::{Host, HostName, HostTable, PathRoute, Site};
use h2o_http::Scheme;

fn main() {
    let bench = kit::Bench::from_arguments();
    bench.case("one-host", "Routing: 1 host, 1 path", || {
        route(
            site(["www.example.com".to_owned()], 1),
            "www.example.com",
            "/1k.txt",
        )
    });
    bench.case("strict-host", "Routing: 1 strict host, 1 path", || {
        let mut site = site(["www.example.com".to_owned()], 1);
        site.hosts[0].strict = true;
        route(site, "www.example.com", "/1k.txt")
    });
    let many = || (0..1000).map(|n| format!("host{n:03}.example.com"));
    bench.case(
        "first-of-1000-hosts",
        "Routing: the first of 1,000 hosts",
        move || route(site(many(), 1), "host000.example.com", "/1k.txt"),
    );
    bench.case(
        "last-of-1000-hosts",
        "Routing: the last of 1,000 hosts",
        move || route(site(many(), 1), "host999.example.com", "/1k.txt"),
    );
    bench.case(
        "none-of-1000-hosts",
        "Routing: a name that none of 1,000 hosts has",
        move || route(site(many(), 1), "other.example.com", "/1k.txt"),
    );
    let wild = || (0..100).map(|n| format!("*.site{n:02}.example.com"));
    bench.case(
        "last-of-100-wildcards",
        "Routing: the last of 100 wildcard hosts",
        move || route(site(wild(), 1), "www.site99.example.com", "/1k.txt"),
    );
    bench.case(
        "last-of-100-paths",
        "Routing: 1 host, the last of 100 paths",
        || {
            route(
                site(["www.example.com".to_owned()], 100),
                "www.example.com",
                "/path00/1k.txt",
            )
        },
    );
}

/// Creates a site configuration with these host names, each of which has the given number of paths.
fn site(names: impl IntoIterator<Item = String>, paths: usize) -> Site {
    let host = |name: String| Host {
        name: HostName {
            name: name.into(),
            port: None,
        },
        paths: (0..paths)
            .rev()
            .map(|n| {
                if paths == 1 {
                    "/".to_owned()
                } else {
                    format!("/path{n:02}/")
                }
            })
            .chain([String::new()])
            .map(|path| PathRoute {
                path: path.into(),
                ..PathRoute::default()
            })
            .collect(),
        ..Host::default()
    };
    Site {
        hosts: names.into_iter().map(host).collect(),
        ..Site::default()
    }
}

fn route(site: Site, authority: &'static str, path: &'static str) -> impl FnMut() {
    let attached: Vec<u32> = (0..).take(site.hosts.len()).collect();
    let hosts = HostTable::new(&site.hosts, &attached);
    move || {
        let (site, hosts) = black_box((&site, &hosts));
        let authority = black_box(authority.as_bytes());
        let host = hosts.select(authority, Scheme::Http);
        let host = host.expect("the site has a host for the authority");
        black_box(site.select_path(host, black_box(path.as_bytes())));
    }
}
