//! X.509 certificates of authorities, listeners and backends.

use std::sync::LazyLock;
use std::time::Duration;

use h2o_tls::{Certificate, OcspError, OcspSubject, same_name, same_public_key};

/// The parts that are read of a certificate lie within its bytes, and comparing names is symmetric.
///
/// # Panics
/// If an invariant does not hold.
pub fn certificate(input: &[u8]) {
    let (one, other) = input.split_at(input.len() / 2);
    assert_eq!(same_name(one, other), same_name(other, one));
    let Some(certificate) = Certificate::parse(input) else {
        return;
    };
    for part in [
        certificate.issuer,
        certificate.subject,
        certificate.tbs,
        certificate.signature,
        certificate.subject_public_key_info,
    ] {
        assert!(input.as_ptr_range().contains(&part.as_ptr()) || part.is_empty());
    }
    assert!(same_name(certificate.subject, certificate.subject));
    assert_eq!(
        same_name(certificate.issuer, certificate.subject),
        same_name(certificate.subject, certificate.issuer)
    );
    let key = certificate.subject_public_key_info;
    let _ = same_public_key(key, key);
    let _ = certificate.common_name();
    let _ = certificate.ocsp_responder();
    let _ = certificate.may_sign_ocsp_responses();
    let names = certificate.alternative_names();
    let count = names.map_or(0, Iterator::count);
    assert!(count <= input.len());
    // A certificate that may issue server certificates must be one that can be a trusted root.
    assert!(!certificate.may_issue_plainly(0) || certificate.may_be_root());
    assert!(!certificate.may_issue_plainly(1) || certificate.may_issue_plainly(0));
}

/// The certificate that the OCSP responses of the corpus `ocsp_response` are about, and the certificate of its issuer, in
/// PEM form.
pub const OCSP_CHAIN: &[u8] = include_bytes!("ocsp_chain.pem");

/// A time since the Unix epoch at which the OCSP responses of the corpus `ocsp_response` are valid.
pub const OCSP_TIME: Duration = Duration::from_secs(1_795_627_009);

/// Checks an arbitrary OCSP response. If it is accepted, it must be refused with an octet appended, without its last octet,
/// and long after the end of its validity.
///
/// # Panics
/// If an invariant is violated.
pub fn ocsp_response(input: &[u8]) {
    static SUBJECT: LazyLock<OcspSubject> = LazyLock::new(|| {
        OcspSubject::of_pem(OCSP_CHAIN)
            .expect("the file has the certificate and that of its issuer")
    });
    let subject = &*SUBJECT;
    let counts = |response: &[u8]| subject.check(response, OCSP_TIME).is_ok();
    if !counts(input) {
        return;
    }
    assert!(!counts(&[input, &[0]].concat()));
    if let Some((_, shorter)) = input.split_last() {
        assert_eq!(subject.check(shorter, OCSP_TIME), Err(OcspError::Malformed));
    }
    // More than 2,000 years later, an accepted response must be refused as expired, unless it names no end of its validity.
    let ended = subject.check(input, Duration::from_secs(u64::from(u32::MAX) << 4));
    assert!(ended.is_err() || ended.is_ok_and(|status| status.until.is_none()));
}
