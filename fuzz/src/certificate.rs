//! X.509 certificates of authorities, listeners and backends.

use h2o_tls::{Certificate, ocsp_validity, same_name, same_public_key};

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
    let _ = certificate.has_ocsp_responder();
    let names = certificate.alternative_names();
    let count = names.map_or(0, Iterator::count);
    assert!(count <= input.len());
    // A certificate that may issue server certificates must be one that can be a trusted root.
    assert!(!certificate.may_issue_plainly(0) || certificate.may_be_root());
    assert!(!certificate.may_issue_plainly(1) || certificate.may_issue_plainly(0));
}

/// The serial number of the certificate that the seed responses are about.
const SERIAL: &[u8] = &[0x12, 0x34];

/// An OCSP response is accepted only if its bytes end where its structure ends: one byte more or less is refused.
///
/// # Panics
/// If an invariant is violated.
pub fn ocsp_response(input: &[u8]) {
    let valid = ocsp_validity(input, SERIAL);
    let longer = [input, &[0]].concat();
    assert!(valid.is_none() || ocsp_validity(&longer, SERIAL).is_none());
    if let Some((_, shorter)) = input.split_last() {
        assert!(valid.is_none() || ocsp_validity(shorter, SERIAL).is_none());
    }
}
