//! The conversation with a certificate authority: account, order, challenges, certificate.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use h2o_http::base64url;
use h2o_log::report;
use h2o_tls::{AlternativeName, Certificate, same_public_key};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeType,
    ExternalAccountKey, Identifier, KeyAuthorization, NewAccount, NewOrder, OrderStatus,
    RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PublicKeyData};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::challenge::{Answer, Question};
use crate::failure::{Cause, Failure};
use crate::http::Https;
use crate::renewal::{Validity, Window};
use crate::{Acme, Challenge, Order};

/// How long the server waits for the authority to check a name, and then for it to issue the certificate.
const DECISION: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// When the authority wants a certificate renewed (RFC 9773).
pub(crate) struct Advice {
    pub(crate) window: Window,
    /// After which time the authority is to be asked again.
    pub(crate) ask_after: Duration,
}

/// A certificate that the server has already.
pub(crate) struct Held {
    pub(crate) validity: Validity,
    /// The identifier by which the authority knows the certificate (RFC 9773 §4.1); `None` if the certificate has no
    /// key identifier of its issuer or no serial number.
    id: Option<CertificateIdentifier<'static>>,
}

impl Held {
    /// Reads the first certificate of a chain in PEM form. `None` if it cannot be read or is not for all these names.
    pub(crate) fn parse(chain: &[u8], names: &[Box<str>]) -> Option<Self> {
        let leaf = CertificateDer::from_pem_slice(chain).ok()?;
        let certificate = Certificate::parse(&leaf)?;
        let found: Vec<_> = certificate.alternative_names()?.flatten().collect();
        let is_for = |name: &str| {
            let is_it = |found: &AlternativeName<'_>| matches!(found, AlternativeName::Dns(found) if found.eq_ignore_ascii_case(name.as_bytes()));
            found.iter().any(is_it)
        };
        names.iter().all(|name| is_for(name)).then(|| Self {
            validity: Validity {
                not_before: certificate.not_before,
                not_after: certificate.not_after,
            },
            id: identifier(&certificate),
        })
    }
}

/// Whether the first certificate of a chain in PEM form is for this key. True for a certificate that cannot be read.
fn is_for_key(chain: &[u8], key: &KeyPair) -> bool {
    let Ok(leaf) = CertificateDer::from_pem_slice(chain) else {
        return true;
    };
    Certificate::parse(&leaf).is_none_or(|certificate| {
        same_public_key(
            certificate.subject_public_key_info,
            &key.subject_public_key_info(),
        )
    })
}

/// The identifier of a certificate for renewal information (RFC 9773 §4.1): the key identifier of its issuer, and its
/// serial number.
fn identifier(certificate: &Certificate<'_>) -> Option<CertificateIdentifier<'static>> {
    Some(CertificateIdentifier {
        authority_key_identifier: base64url::encode(certificate.authority_key_id()?).into(),
        serial: base64url::encode(certificate.serial).into(),
    })
}

/// The client of a certificate authority, with an account there.
pub(crate) struct Client<'a> {
    acme: &'a Acme,
    account: Account,
}

impl<'a> Client<'a> {
    /// Uses the account whose key is in the state directory, or registers an account if there is none.
    /// `retry_after` receives the time from which on the authority takes requests again, if it refuses one now.
    pub(crate) async fn open(
        acme: &'a Acme,
        retry_after: &Arc<AtomicI64>,
    ) -> Result<Self, Failure> {
        if let Some(text) = acme.state.read_account(&acme.server)? {
            if let Ok(credentials) = serde_json::from_slice::<AccountCredentials>(&text) {
                let builder =
                    Account::builder_with_http(Box::new(Https::new(&acme.tls, retry_after)));
                match builder.from_credentials(credentials).await {
                    Ok(account) => return Ok(Self { acme, account }),
                    Err(instant_acme::Error::KeyRejected) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let aside = acme.state.set_account_aside(&acme.server)?;
            report!(
                warning,
                "acme: the account file is broken and was moved to {}; registering a new account",
                aside.display()
            );
        }
        Self::register(acme, retry_after).await
    }

    /// Registers a new account at the authority and stores it in the state directory.
    pub(crate) async fn register(
        acme: &'a Acme,
        retry_after: &Arc<AtomicI64>,
    ) -> Result<Self, Failure> {
        let contact = format!("mailto:{}", acme.email);
        let external = acme.external_account.as_ref();
        let external =
            external.map(|account| ExternalAccountKey::new(account.id.to_string(), &account.key));
        let builder = Account::builder_with_http(Box::new(Https::new(&acme.tls, retry_after)));
        let request = NewAccount {
            contact: &[&contact],
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let (account, credentials) = builder
            .create(&request, acme.server.to_string(), external.as_ref())
            .await?;
        let text = serde_json::to_vec(&credentials)
            .map_err(|error| Failure::new(Cause::Local, error.to_string()))?;
        acme.state.write_account(&acme.server, &text)?;
        report!(notice, "acme: registered an account at {}", acme.server);
        Ok(Self { acme, account })
    }

    /// Asks the authority when it wants the certificate `held` renewed; `None` if it does not say.
    pub(crate) async fn advice(&self, held: &Held) -> Option<Advice> {
        let id = held.id.as_ref()?;
        // If the authority knows nothing of renewal information, or of this certificate, the server chooses the time of
        // the renewal itself.
        let (info, ask_after) = self.account.renewal_info(id).await.ok()?;
        Some(Advice {
            window: Window {
                start: info.suggested_window.start.unix_timestamp(),
                end: info.suggested_window.end.unix_timestamp(),
            },
            ask_after,
        })
    }

    /// Obtains a certificate and writes it into the state directory. `held` is the certificate that it replaces.
    pub(crate) async fn obtain(&self, order: &Order, held: Option<&Held>) -> Result<Held, Failure> {
        let names = || order.names.iter().map(|name| name.to_string());
        let identifiers: Vec<_> = names().map(Identifier::Dns).collect();
        let request = || NewOrder::new(&identifiers);
        let replaced = held.and_then(|held| held.id.clone());
        let placed = match replaced {
            Some(id) => match self.account.new_order(&request().replaces(id)).await {
                Err(error) if !is_fatal(&error) => self.account.new_order(&request()).await,
                placed => placed,
            },
            None => self.account.new_order(&request()).await,
        };
        let mut placed = placed?;
        // The answers to the challenges must stay in place until the authority has decided.
        let answers = self.answer(&mut placed, order).await?;
        if !matches!(
            placed.state().status,
            OrderStatus::Ready | OrderStatus::Valid
        ) {
            match placed.poll_ready(&DECISION).await {
                Ok(OrderStatus::Ready | OrderStatus::Valid) => {}
                Ok(_) => return Err(reason_of(&mut placed, None).await),
                Err(error) => return Err(reason_of(&mut placed, Some(error)).await),
            }
        }
        drop(answers);
        let made = |error: rcgen::Error| Failure::new(Cause::Local, error.to_string());
        let key = KeyPair::generate().map_err(made)?;
        let mut parameters = CertificateParams::new(names().collect::<Vec<_>>()).map_err(made)?;
        parameters.distinguished_name = DistinguishedName::new();
        let request = parameters.serialize_request(&key).map_err(made)?;
        placed.finalize_csr(request.der()).await?;
        let chain = placed.poll_certificate(&DECISION).await?;
        if !is_for_key(chain.as_bytes(), &key) {
            return Err(Failure::refused(
                "the authority sent a certificate for another key",
            ));
        }
        let obtained = Held::parse(chain.as_bytes(), &order.names);
        let obtained = obtained
            .ok_or_else(|| Failure::refused("the authority sent a certificate that cannot be read, or that lacks a requested name"))?;
        (self.acme.state).write_certificate(order.name(), &chain, &key.serialize_pem())?;
        Ok(obtained)
    }

    /// Puts the answers to all challenges of an order in place, and tells the authority.
    async fn answer(
        &self,
        placed: &mut instant_acme::Order,
        order: &Order,
    ) -> Result<Vec<Answer>, Failure> {
        let kind = match order.challenge {
            Challenge::Http01 => ChallengeType::Http01,
            Challenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        };
        let mut answers = Vec::new();
        let mut authorizations = placed.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                _ => {
                    return Err(Failure::refused(
                        "the authority has refused or revoked an earlier check of a host name",
                    ));
                }
            }
            let question = authorization.challenge(kind.clone());
            let mut question = question.ok_or_else(|| {
                Failure::refused("the authority does not offer the configured `challenge`: configure the other one")
            })?;
            let Identifier::Dns(name) = question.identifier().identifier else {
                return Err(Failure::refused(
                    "the authority asks about an identifier that is not a host name",
                ));
            };
            let name = name.clone();
            let expected: KeyAuthorization = question.key_authorization();
            answers.push(Answer::give(
                order.challenge,
                &self.acme.state,
                &Question {
                    name: &name,
                    token: &question.token,
                    key_authorization: expected.as_str(),
                    digest: expected.digest().as_ref(),
                },
            )?);
            question.set_ready().await?;
        }
        Ok(answers)
    }
}

/// Whether an order that names the certificate to be replaced failed for a reason other than this name. If not, the
/// order is repeated without it: authorities refuse orders that replace a certificate which they do not know or which
/// was replaced before (RFC 9773 §5).
fn is_fatal(error: &instant_acme::Error) -> bool {
    match error {
        instant_acme::Error::Api(problem) => {
            let kind = problem.r#type.as_deref().unwrap_or_default();
            kind.ends_with(":rateLimited") || kind.ends_with(":accountDoesNotExist")
        }
        instant_acme::Error::Unsupported(_) => false,
        instant_acme::Error::Other(error) => {
            !error.to_string().starts_with("replaces field mismatch")
        }
        _ => true,
    }
}

/// The reason why an order was not fulfilled: what the authority found when it checked a name, if it says so.
async fn reason_of(
    placed: &mut instant_acme::Order,
    error: Option<instant_acme::Error>,
) -> Failure {
    let mut authorizations = placed.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let Ok(state) = authorization.refresh().await else {
            break;
        };
        let problem = state
            .challenges
            .iter()
            .find_map(|challenge| challenge.error.clone());
        if let Some(problem) = problem {
            return instant_acme::Error::Api(problem).into();
        }
    }
    let refused = || {
        Failure::refused(
            "the authority did not accept a name of the certificate and gave no reason",
        )
    };
    error.map_or_else(refused, Failure::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_for_another_key_is_told_from_ones_own() {
        let [own, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let parameters = CertificateParams::new(["a.test".to_owned()]).unwrap();
        let chain = parameters.self_signed(&own).unwrap().pem();
        assert!(is_for_key(chain.as_bytes(), &own));
        assert!(!is_for_key(chain.as_bytes(), &other));
        assert!(is_for_key(b"no certificate", &own));
    }
}
