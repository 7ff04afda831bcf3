//! Facts about certificates: names and validity. Every reader sees the current list of certificates.

use std::sync::Arc;

use h2o_exchange::{CertificateInfo, Certificates};

fn certificate(names: &[&str], not_after: i64) -> CertificateInfo {
    CertificateInfo {
        file: "a.pem".into(),
        place: "h2o.conf:3".into(),
        listeners: vec!["ANY:443".into()],
        hosts: Vec::new(),
        names: names.iter().map(|name| (*name).into()).collect(),
        is_obtained: false,
        is_stand_in: false,
        not_before: 0,
        not_after,
    }
}

#[test]
fn a_certificate_is_for_the_names_in_it() {
    // Each row: names in the certificate, host that the client asks for, and whether they match (RFC 6125 §6.4).
    let cases: &[(&[&str], &str, bool)] = &[
        (&["a.example"], "a.example", true),
        (&["a.example"], "A.Example", true),
        (&["A.EXAMPLE"], "a.example", true),
        (&["a.example"], "a.example.", true),
        (&["a.example"], "b.example", false),
        (&["a.example"], "a.a.example", false),
        (&["a.example"], "", false),
        (&[], "a.example", false),
        (&["b.example", "a.example"], "a.example", true),
        (&["*.example"], "a.example", true),
        (&["*.example"], "A.EXAMPLE", true),
        (&["*.example"], "example", false),
        (&["*.example"], "a.b.example", false),
        (&["*.b.example"], "a.b.example", true),
        (&["*.b.example"], "b.example", false),
        // An asterisk within a label, or in a later label, is an ordinary character.
        (&["a*.example"], "ab.example", false),
        (&["a.*.example"], "a.b.example", false),
        (&["*"], "localhost", false),
        (&["127.0.0.1"], "127.0.0.1", true),
        (&["127.0.0.1"], "127.0.0.2", false),
        (&["*.0.0.1"], "127.0.0.1", false),
        (&["::1"], "::1", true),
        (&["0:0:0:0:0:0:0:1"], "::1", true),
        (&["::1"], "0:0:0:0:0:0:0:1", true),
        (&["::ffff:127.0.0.1"], "127.0.0.1", false),
        (&["a.example"], "127.0.0.1", false),
    ];
    for (names, host, want) in cases {
        let is_for = certificate(names, 0).is_for(host);
        assert_eq!(is_for, *want, "{names:?}, asked for {host}");
    }
}

#[test]
fn days_are_whole_and_count_down_through_zero() {
    const DAY: i64 = 86_400;
    let cases = [
        (0, 10 * DAY, 10),
        (0, 10 * DAY - 1, 9),
        (0, 10 * DAY + DAY - 1, 10),
        (10 * DAY, 10 * DAY, 0),
        (10 * DAY + 1, 10 * DAY, -1),
        (11 * DAY, 10 * DAY, -1),
        (11 * DAY + 1, 10 * DAY, -2),
        (0, i64::MAX, i64::MAX / DAY),
    ];
    for (now, not_after, want) in cases {
        let days = certificate(&[], not_after).days_left(now);
        assert_eq!(days, want, "until {not_after} from {now}");
    }
}

#[test]
fn all_see_the_list_that_was_set_last() {
    let certificates = Certificates::default();
    assert!(certificates.list().is_empty());
    let others: Vec<Certificates> = (0..4).map(|_| certificates.clone()).collect();
    let before = certificates.list();
    certificates.set([certificate(&["a.example"], 1)].into());
    assert!(
        before.is_empty(),
        "the list that a reader holds does not change"
    );
    assert!(others.iter().all(|other| other.list().len() == 1));
    assert!(others[0].list()[0].is_for("a.example"));
    let threads = others.into_iter().map(|mine| {
        std::thread::spawn(move || {
            // Each thread sets its own list of certificates; readers always see a complete list.
            mine.set(
                [
                    certificate(&["b.example"], 2),
                    certificate(&["c.example"], 2),
                ]
                .into(),
            );
            for _ in 0..1_000 {
                let seen = mine.list();
                assert!(seen.len() == 1 || seen.len() == 2);
                let until: Vec<i64> = seen.iter().map(|one| one.not_after).collect();
                assert!(until == [1] || until == [2, 2], "{until:?}");
            }
            mine
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        let mine = thread
            .join()
            .expect("no thread has seen an incomplete list");
        assert_eq!(mine.list().len(), 2);
        assert!(Arc::ptr_eq(&mine.list(), &certificates.list()));
    }
}
