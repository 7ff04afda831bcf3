//! Which certificates of backends are trusted, and which message is shown for the others.

use super::*;

/// The message with which a client rejects a server that has this certificate chain and this private key; empty if the client
/// accepts it.
fn outcome(client: &TlsClient, name: &str, chain: &[&CertificateDer<'_>], key: &KeyPair) -> String {
    let chain = chain
        .iter()
        .map(|der| (*der).clone().into_owned())
        .collect();
    let server = Server::new(chain, key);
    let met = server.meet(client, name, KEY, &[]);
    met.err().unwrap_or_default().to_owned()
}

#[test]
fn chains_fail_with_the_texts_of_openssl() {
    let (trusted, unknown) = (root("trusted"), root("unknown"));
    let middle_key = KeyPair::generate().unwrap();
    let middle = authority_params("middle");
    let middle: Authority = CertifiedIssuer::signed_by(middle, middle_key, &trusted).unwrap();
    let short_key = KeyPair::generate().unwrap();
    let mut short = authority_params("short");
    short.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let short: Authority = CertifiedIssuer::signed_by(short, short_key, &trusted).unwrap();
    let under_key = KeyPair::generate().unwrap();
    let under = authority_params("under");
    let under: Authority = CertifiedIssuer::signed_by(under, under_key, &short).unwrap();
    let no_ca_key = KeyPair::generate().unwrap();
    let no_ca = params("no authority", &[]);
    let no_ca: Authority = CertifiedIssuer::signed_by(no_ca, no_ca_key, &trusted).unwrap();
    let forger = root("trusted");

    let none = |_: &mut CertificateParams| {};
    let good = leaf(&trusted, none);
    let of_middle = leaf(&middle, none);
    let of_under = leaf(&under, none);
    let of_no_ca = leaf(&no_ca, none);
    let of_unknown = leaf(&unknown, none);
    let of_forger = leaf(&forger, none);
    let expired = leaf(&trusted, expire);
    let expired_of_unknown = leaf(&unknown, expire);
    let early = leaf(&trusted, begin_later);
    let for_clients = leaf(&trusted, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    let own = self_signed(none);
    let own_expired = self_signed(expire);
    let own_authority = self_signed(|params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    });

    type Case<'a> = (&'a str, &'a Leaf, &'a [&'a Authority], &'a str);
    let cases: &[Case<'_>] = &[
        ("good", &good, &[], ""),
        ("with the root", &good, &[&trusted], ""),
        ("of an intermediate", &of_middle, &[&middle], ""),
        ("intermediate missing", &of_middle, &[], verifier::NO_ISSUER),
        ("unknown", &of_unknown, &[], verifier::NO_ISSUER),
        (
            "expired, unknown",
            &expired_of_unknown,
            &[],
            verifier::NO_ISSUER,
        ),
        (
            "unknown root",
            &of_unknown,
            &[&unknown],
            verifier::SELF_SIGNED_IN_CHAIN,
        ),
        ("self-signed", &own, &[], verifier::SELF_SIGNED),
        (
            "self-signed, expired",
            &own_expired,
            &[],
            verifier::SELF_SIGNED,
        ),
        (
            "self-signed authority",
            &own_authority,
            &[],
            verifier::SELF_SIGNED,
        ),
        ("expired", &expired, &[], "certificate has expired"),
        ("early", &early, &[], "certificate is not yet valid"),
        (
            "for clients",
            &for_clients,
            &[],
            "unsuitable certificate purpose",
        ),
        (
            "of no authority",
            &of_no_ca,
            &[&no_ca],
            "invalid CA certificate",
        ),
        (
            "too long",
            &of_under,
            &[&under, &short],
            "path length constraint exceeded",
        ),
        ("forged", &of_forger, &[], "certificate signature failure"),
    ];
    let client = trusting(&[trusted.der()]);
    let file = pem_file(&[trusted.der()]);
    let careless = client_of(TlsClientSettings {
        verify_peer: false,
        ca_file: Some(file.path().to_owned()),
        session_cache: None,
    });
    for (what, (leaf, key), issuers, want) in cases {
        let issuers = issuers.iter().map(|issuer| issuer.der());
        let chain: Vec<_> = [leaf].into_iter().chain(issuers).collect();
        assert_eq!(outcome(&client, NAME, &chain, key), *want, "{what}");
        assert_eq!(outcome(&careless, NAME, &chain, key), "", "{what}");
    }
}

#[test]
fn the_name_is_checked_after_the_chain() {
    let trusted = root("trusted");
    let client = trusting(&[trusted.der()]);
    let good = leaf(&trusted, |_| {});
    let nameless = leaf(&trusted, |params| {
        params.subject_alt_names.clear();
        params.distinguished_name.remove(DnType::CommonName);
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Example");
    });
    let only_common = leaf(&trusted, |params| params.subject_alt_names.clear());
    let other = leaf(&root("unknown"), |_| {});
    let cases = [
        (&good, "NAME.example.", ""),
        (&good, "other.example", names::MISMATCH),
        (&good, "192.0.2.1", names::MISMATCH),
        (&good, "no name", names::MISMATCH),
        (&nameless, NAME, verifier::INVALID),
        (&only_common, "leaf", ""),
        (&only_common, NAME, names::MISMATCH),
        (&other, "other.example", verifier::NO_ISSUER),
    ];
    let careless = careless(None);
    for ((leaf, key), name, want) in cases {
        assert_eq!(outcome(&client, name, &[leaf], key), want, "{name}");
        assert_eq!(outcome(&careless, name, &[leaf], key), "", "{name}");
    }
}

#[test]
fn a_backends_own_certificate_is_trusted_if_it_is_in_the_ca_file() {
    type Tune = fn(&mut CertificateParams);
    let as_authority: Tune = |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let cases: [(Tune, &str); 4] = [
        (|_| {}, ""),
        (as_authority, ""),
        (expire, "certificate has expired"),
        (begin_later, "certificate is not yet valid"),
    ];
    let other = self_signed(|_| {});
    for (tune, want) in cases {
        let (own, key) = self_signed(tune);
        let client = trusting(&[&own]);
        assert_eq!(outcome(&client, NAME, &[&own], &key), want);
        assert_eq!(
            outcome(&client, "other.example", &[&own], &key),
            if want.is_empty() {
                names::MISMATCH
            } else {
                want
            }
        );
        // A certificate with the name of the trusted one, but another key, is rejected.
        assert_eq!(
            outcome(&client, NAME, &[&other.0], &other.1),
            verifier::SELF_SIGNED
        );
        // A server that does not have the private key of its certificate is rejected.
        let without = outcome(&client, NAME, &[&own], &other.1);
        let want = if want.is_empty() {
            HANDSHAKE_FAILURE
        } else {
            want
        };
        assert_eq!(without, want);
    }
}

/// Converts `certificate` to version 1: removes its version and extensions.
fn to_version1(certificate: &[u8]) -> CertificateDer<'static> {
    let mut outer = Reader(certificate);
    let mut outer = Reader(outer.element().unwrap().content);
    let mut tbs = Reader(outer.element().unwrap().content);
    let mut kept = Vec::new();
    while let Some(part) = tbs.element() {
        if !matches!(part.tag, 0xa0 | 0xa3) {
            kept.extend_from_slice(part.whole);
        }
    }
    let content = [&der_element(0x30, &kept), outer.0].concat();
    der_element(0x30, &content).into()
}

fn der_element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [_, _, high, low] = u32::try_from(content.len()).unwrap().to_be_bytes();
    let header: &[u8] = match (high, low) {
        (0, 0..=0x7f) => &[tag, low],
        (0, _) => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    [header, content].concat()
}

#[test]
fn certificates_of_version_1_work_where_no_chain_is_verified() {
    let rsa = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    let keys = [
        KeyPair::generate().unwrap(),
        KeyPair::generate().unwrap(),
        rsa,
    ];
    let of = |key: &KeyPair| params(NAME, &[]).self_signed(key).unwrap().der().clone();
    let [own, other, own_rsa] = keys.each_ref().map(|key| to_version1(&of(key)));
    let trusting = trusting(&[&own, &own_rsa]);
    let careless = careless(None);
    for version in VERSIONS {
        for (certificate, key) in [(&own, &keys[0]), (&own_rsa, &keys[2])] {
            let server = Server::with(vec![certificate.clone()], key, &[version], &[]);
            for client in [&careless, &trusting] {
                let met = server.meet(client, NAME, KEY, &[]);
                assert!(met.is_ok(), "{:?}", met.err());
            }
        }
        // The signature in the handshake is verified: a server that does not have the certificate's key is rejected.
        let server = Server::with(vec![other.clone()], &keys[0], &[version], &[]);
        let met = server.meet(&careless, NAME, KEY, &[]);
        assert_eq!(met.err(), Some(HANDSHAKE_FAILURE));
    }
}

#[test]
fn a_certificate_with_the_name_and_key_of_a_pinned_one_is_not_trusted() {
    let key = KeyPair::generate().unwrap();
    let own = |names: &[&str], tune: fn(&mut CertificateParams)| {
        let mut params = params("own", names);
        tune(&mut params);
        params.self_signed(&key).unwrap().der().clone()
    };
    let pinned = own(&["one.internal"], |_| {});
    let expired = own(&[NAME], expire);
    let client = trusting(&[&pinned, &expired]);
    assert_eq!(outcome(&client, "one.internal", &[&pinned], &key), "");
    let forged = own(&["one.internal", "two.internal", NAME], |_| {});
    for name in ["one.internal", "two.internal", NAME] {
        assert_eq!(
            outcome(&client, name, &[&forged], &key),
            verifier::SELF_SIGNED,
            "{name}"
        );
    }
    // A self-signed certificate in the CA file must not issue other certificates.
    let own_params = params("own", &[]);
    let issuer = Issuer::from_params(&own_params, &key);
    let mut other = params("other", &[NAME]);
    other.is_ca = IsCa::NoCa;
    let other_key = KeyPair::generate().unwrap();
    let issued = other.signed_by(&other_key, &issuer).unwrap();
    assert_ne!(outcome(&client, NAME, &[issued.der()], &other_key), "");
    assert_ne!(
        outcome(&client, NAME, &[issued.der(), &pinned], &other_key),
        ""
    );
    // A certificate that has not expired, but has the same key, must not replace an expired one in the CA file.
    assert_eq!(
        outcome(&client, NAME, &[&expired], &key),
        "certificate has expired"
    );
    let renewed = own(&[NAME], |_| {});
    assert_eq!(
        outcome(&client, NAME, &[&renewed], &key),
        verifier::SELF_SIGNED
    );
}

fn permit(params: &mut CertificateParams) {
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName("example.com".to_owned())],
        excluded_subtrees: Vec::new(),
    });
}

/// A leaf certificate with a common name and no alternative names.
fn common_leaf(issuer: &Issuer<'_, KeyPair>, name: &str) -> Leaf {
    leaf(issuer, |params| {
        params.subject_alt_names.clear();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
    })
}

#[test]
fn common_names_do_not_evade_name_constraints() {
    let free = root("free");
    let mut bound_params = authority_params("bound");
    permit(&mut bound_params);
    let bound_key = KeyPair::generate().unwrap();
    let bound_root: Authority = CertifiedIssuer::self_signed(bound_params, bound_key).unwrap();
    let mut middle_params = authority_params("middle");
    permit(&mut middle_params);
    let middle_key = KeyPair::generate().unwrap();
    let middle: Authority = CertifiedIssuer::signed_by(middle_params, middle_key, &free).unwrap();
    let client = trusting(&[free.der(), bound_root.der()]);

    for (common_name, asked) in [
        ("api.victim.com", "api.victim.com"),
        ("*.victim.com", "api.victim.com"),
        ("API.VICTIM.COM", "api.victim.com"),
    ] {
        let (of_free, key) = common_leaf(&free, common_name);
        assert_eq!(outcome(&client, asked, &[&of_free], &key), "");
        let (of_middle, key) = common_leaf(&middle, common_name);
        assert_eq!(
            outcome(&client, asked, &[&of_middle, middle.der()], &key),
            names::MISMATCH,
            "{common_name}"
        );
        let (of_bound, key) = common_leaf(&bound_root, common_name);
        assert_eq!(
            outcome(&client, asked, &[&of_bound], &key),
            names::MISMATCH,
            "{common_name}"
        );
    }
    // A name constraint of an authority permits this alternative name.
    let permitted = leaf(&middle, |params| {
        params.subject_alt_names = self::params("leaf", &["api.example.com"]).subject_alt_names;
    });
    let chain = [&permitted.0, middle.der()];
    assert_eq!(
        outcome(&client, "api.example.com", &chain, &permitted.1),
        ""
    );
    let other = leaf(&middle, |_| {});
    assert_eq!(
        outcome(&client, NAME, &[&other.0, middle.der()], &other.1),
        "permitted subtree violation"
    );
}

#[test]
fn common_names_do_not_count_with_the_authorities_of_the_system() {
    let trusted = root("trusted");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.der().clone()).unwrap();
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    let check = |pinned: Vec<CertificateDer<'static>>, leaf: &Leaf| {
        let roots = roots.clone();
        let verifier = Verifier::new(Some(Arc::new(Trust { roots, pinned })), algorithms);
        let name = ServerName::try_from(NAME).unwrap();
        let now = rustls::pki_types::UnixTime::now();
        rustls::client::danger::ServerCertVerifier::verify_server_cert(
            &verifier,
            &leaf.0,
            &[],
            &name,
            &[],
            now,
        )
        .is_ok()
    };
    let common = common_leaf(&trusted, NAME);
    let alternative = leaf(&trusted, |_| {});
    assert!(check(Vec::new(), &alternative) && !check(Vec::new(), &common));
    let pinned = vec![trusted.der().clone()];
    assert!(check(pinned.clone(), &alternative) && check(pinned, &common));
}

/// Returns a certificate of an authority, and an issuer that has the same key and name, but the name in another string type.
fn under_two_names(
    tune: impl Fn(&mut CertificateParams),
    of: Option<&Authority>,
) -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
    let named = |value: DnValue| {
        let mut params = authority_params("");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, value);
        tune(&mut params);
        params
    };
    let key = KeyPair::generate().unwrap();
    let printable = DnValue::PrintableString("Our  Authority".try_into().unwrap());
    let params = named(printable);
    let certificate = match of {
        Some(issuer) => params.signed_by(&key, issuer).unwrap(),
        None => params.self_signed(&key).unwrap(),
    };
    let der = certificate.der().clone();
    let utf8 = named(DnValue::Utf8String("our authority".to_owned()));
    (der, Issuer::new(utf8, key))
}

#[test]
fn names_of_other_string_types_do_not_break_a_chain() {
    let (root_der, issuer) = under_two_names(|_| {}, None);
    let client = trusting(&[&root_der]);
    let (good, key) = leaf(&issuer, |_| {});
    assert_eq!(outcome(&client, NAME, &[&good], &key), "");
    assert_eq!(
        outcome(&client, "other.example", &[&good], &key),
        names::MISMATCH
    );
    // All other checks of the leaf certificate still apply.
    let (expired, key) = leaf(&issuer, expire);
    assert_ne!(outcome(&client, NAME, &[&expired], &key), "");
    let (for_clients, key) = leaf(&issuer, |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    assert_ne!(outcome(&client, NAME, &[&for_clients], &key), "");
    let (_, forger) = under_two_names(|_| {}, None);
    let (forged, key) = leaf(&forger, |_| {});
    assert_ne!(outcome(&client, NAME, &[&forged], &key), "");
    // An authority that is not in the CA file is not trusted.
    let other = trusting(&[root("other").der()]);
    let (good, key) = leaf(&issuer, |_| {});
    assert_eq!(outcome(&other, NAME, &[&good], &key), verifier::NO_ISSUER);

    // A name constraint of the root also applies to certificates in which the root's name has another string type.
    let (root_der, issuer) = under_two_names(permit, None);
    let client = trusting(&[&root_der]);
    let (outside, key) = leaf(&issuer, |_| {});
    assert_ne!(outcome(&client, NAME, &[&outside], &key), "");
    let (common, key) = common_leaf(&issuer, "api.victim.com");
    assert_ne!(outcome(&client, "api.victim.com", &[&common], &key), "");
}

#[test]
fn authorities_between_that_may_not_issue_do_not_do_so_under_another_name() {
    let trusted = root("trusted");
    let client = trusting(&[trusted.der()]);
    let outcome_of = |tune: &dyn Fn(&mut CertificateParams)| {
        let (middle, issuer) = under_two_names(tune, Some(&trusted));
        let (leaf, key) = leaf(&issuer, |_| {});
        outcome(&client, NAME, &[&leaf, &middle], &key)
    };
    assert_eq!(outcome_of(&|_| {}), "");
    assert_eq!(
        outcome_of(&|params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0))),
        ""
    );
    assert_ne!(outcome_of(&|params| params.is_ca = IsCa::NoCa), "");
    assert_ne!(outcome_of(&permit), "");
    assert_ne!(outcome_of(&expire), "");
    assert_ne!(outcome_of(&begin_later), "");
    assert_ne!(
        outcome_of(&|params| params.key_usages = vec![rcgen::KeyUsagePurpose::CrlSign]),
        ""
    );
    // An intermediate authority that is signed by itself, not by the trusted root, leads nowhere.
    let (middle, issuer) = under_two_names(|_| {}, None);
    let (leaf, key) = leaf(&issuer, |_| {});
    assert_ne!(outcome(&client, NAME, &[&leaf, &middle], &key), "");
}

#[test]
fn many_authorities_of_one_name_do_not_cost_more_than_some_signatures() {
    let trusted = root("our authority");
    let client = trusting(&[trusted.der()]);
    // These 40 authorities share one key and one name, so that each counts as the issuer of every other.
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority_params("our authority"), key);
    let sent: Vec<_> = (0..40)
        .map(|_| {
            let mut params = authority_params("");
            params.distinguished_name = rcgen::DistinguishedName::new();
            let name = DnValue::PrintableString("Our Authority".try_into().unwrap());
            params.distinguished_name.push(DnType::CommonName, name);
            let certificate = params.signed_by(issuer.key(), &issuer).unwrap();
            certificate.der().clone()
        })
        .collect();
    let (leaf, key) = leaf(&issuer, |_| {});
    let chain: Vec<_> = [&leaf].into_iter().chain(&sent).collect();
    assert_ne!(outcome(&client, NAME, &chain, &key), "");
}

/// A leaf certificate of version 1 whose common name is [`NAME`].
fn version1(issuer: &Issuer<'_, KeyPair>, tune: impl FnOnce(&mut CertificateParams)) -> Leaf {
    let (certificate, key) = leaf(issuer, |params| {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, NAME);
        tune(params);
    });
    let unsigned = to_version1(&certificate);
    let mut outer = Reader(&unsigned);
    let mut outer = Reader(outer.element().unwrap().content);
    let (tbs, algorithm) = (outer.element().unwrap(), outer.element().unwrap());
    let signature = SigningKey::sign(issuer.key(), tbs.whole).unwrap();
    let bits = der_element(0x03, &[&[0][..], &signature].concat());
    let content = [tbs.whole, algorithm.whole, &bits].concat();
    (der_element(0x30, &content).into(), key)
}

#[test]
fn leaves_of_version_1_are_not_refused_if_the_ca_file_has_their_issuer() {
    let trusted = root("trusted");
    let client = trusting(&[trusted.der()]);
    let (good, key) = version1(&trusted, |_| {});
    assert_eq!(outcome(&client, NAME, &[&good], &key), "");
    assert_eq!(
        outcome(&client, "other.example", &[&good], &key),
        names::MISMATCH
    );
    let (expired, key) = version1(&trusted, expire);
    assert_ne!(outcome(&client, NAME, &[&expired], &key), "");
    let (early, key) = version1(&trusted, begin_later);
    assert_ne!(outcome(&client, NAME, &[&early], &key), "");
    let (forged, key) = version1(&root("trusted"), |_| {});
    assert_ne!(outcome(&client, NAME, &[&forged], &key), "");
    let (unknown, key) = version1(&root("unknown"), |_| {});
    assert_ne!(outcome(&client, NAME, &[&unknown], &key), "");
    // A backend that presents a trusted certificate without having its private key is refused.
    let (good, _) = version1(&trusted, |_| {});
    let other_key = KeyPair::generate().unwrap();
    assert_eq!(
        outcome(&client, NAME, &[&good], &other_key),
        HANDSHAKE_FAILURE
    );

    // A version 1 certificate cannot be an authority.
    let key = KeyPair::generate().unwrap();
    let middle_params = authority_params("middle");
    let middle = middle_params.signed_by(&key, &trusted).unwrap();
    let middle = to_version1(middle.der());
    let middle_issuer = Issuer::new(authority_params("middle"), key);
    let (below, key) = version1(&middle_issuer, |_| {});
    assert_ne!(outcome(&client, NAME, &[&below, &middle], &key), "");

    // Name constraints cannot be applied to common names, so a leaf of version 1 below an authority with constraints is rejected.
    let mut bound = authority_params("bound");
    permit(&mut bound);
    let bound_key = KeyPair::generate().unwrap();
    let bound: Authority = CertifiedIssuer::self_signed(bound, bound_key).unwrap();
    let client = trusting(&[bound.der()]);
    let (of_bound, key) = version1(&bound, |_| {});
    assert_ne!(outcome(&client, NAME, &[&of_bound], &key), "");
}

#[test]
fn ca_files_must_have_a_certificate() {
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let cases = [
        ("", "no certificate found"),
        ("text\n", "no certificate found"),
        (garbage, "malformed certificate"),
    ];
    for verify_peer in [true, false] {
        let open = |path: &Path| {
            TlsClient::new(TlsClientSettings {
                verify_peer,
                ca_file: Some(path.to_owned()),
                session_cache: None,
            })
        };
        for (text, reason) in cases {
            let mut file = NamedTempFile::new().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(open(file.path()).unwrap_err().reason, reason);
        }
        let unclosed = &garbage[..garbage.len() - 10];
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(unclosed.as_bytes()).unwrap();
        assert!(open(file.path()).is_err());
        let error = open(Path::new("/nowhere/ca.pem")).unwrap_err();
        let want = "failed to load certificates file:/nowhere/ca.pem: No such file or directory";
        assert_eq!(error.to_string(), want);
        // A CA file may contain a certificate that cannot be parsed, beside usable ones.
        let mut file = pem_file(&[root("trusted").der()]);
        file.write_all(garbage.as_bytes()).unwrap();
        assert!(open(file.path()).is_ok());
    }
}

#[test]
fn clients_are_equal_as_long_as_their_ca_file_has_not_changed() {
    let mut file = pem_file(&[root("trusted").der()]);
    let open = |path: &Path| {
        client_of(TlsClientSettings {
            verify_peer: true,
            ca_file: Some(path.to_owned()),
            session_cache: None,
        })
    };
    let before = open(file.path());
    assert!(before == open(file.path()));
    let more = std::fs::read(pem_file(&[root("another").der()]).path()).unwrap();
    file.write_all(&more).unwrap();
    assert!(before != open(file.path()));
    assert!(before != careless(None));
    assert!(careless(None) == careless(None));
}

#[test]
fn the_bundle_of_the_system_is_the_default() {
    let client = client_of(TlsClientSettings {
        verify_peer: true,
        ca_file: None,
        session_cache: None,
    });
    let (own, key) = self_signed(|_| {});
    assert_eq!(outcome(&client, NAME, &[&own], &key), verifier::SELF_SIGNED);
    match TlsClient::bundle() {
        Ok(()) => assert!(!Trust::system().roots.is_empty()),
        Err(error) => assert!(Trust::system().roots.is_empty() && error.path.is_absolute()),
    }
}
