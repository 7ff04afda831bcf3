//! To be filled.

use h2o_config::Directive;
use h2o_exchange::Scope;

pub(crate) const DIRECTIVES: &[Directive<Scope>] = &[];
