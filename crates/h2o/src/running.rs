//! The running server: how it reacts to events, and how it reloads its configuration (SIGHUP and `h2o reload`).

use std::sync::atomic::Ordering::Relaxed;

use h2o_config::Source;
use h2o_keys::Revival;
use h2o_log::{Target, report};
use h2o_server::{LoadedConfig, Server};

use crate::question::{Answer, Question, Reply};
use crate::supervise::{Control, ShutdownTimes};
use crate::systemd::{self, State};
use crate::{Failure, check, privileges};

/// The running server, controlled by [`handle_events`](crate::supervise::handle_events).
pub(crate) struct RunningServer<'a> {
    pub(crate) server: Server,
    pub(crate) loaded: LoadedConfig,
    /// The name of the configuration file.
    pub(crate) config: &'a str,
    /// The source that the configuration is read from.
    pub(crate) source: &'a dyn Source,
    /// The error log, where the server's messages go.
    pub(crate) error_log: &'a Target,
    /// Whether a supervisor has opened the listening sockets, and passes the same sockets to the next worker.
    pub(crate) is_supervised: bool,
}

impl RunningServer<'_> {
    /// Reloads the configuration. On an error, the old configuration stays in use.
    ///
    /// # Errors
    /// The error message for the administrator.
    fn reload_configuration(&mut self) -> Result<Answer, String> {
        let result = self.serve_next();
        let reloads = &self.server.shared().reloads;
        let count = match result {
            Ok(_) => &reloads.succeeded,
            Err(_) => &reloads.failed,
        };
        count.fetch_add(1, Relaxed);
        let messages = result?;
        for warning in &messages {
            // The messages of a configuration begin with their level already.
            let text = warning.strip_prefix("[warning] ").unwrap_or(warning);
            report!(warning, "{text}");
        }
        let done = format!("reloaded the configuration: {}", self.config);
        report!(notice, "{done}");
        Ok(Answer {
            code: 0,
            lines: vec![done],
            messages,
        })
    }

    /// Reads the configuration as it is in the file now.
    fn next_configuration(&self) -> Result<LoadedConfig, String> {
        // A configuration that came through a pipe is not read again: the main thread would block on the pipe, and not
        // react to signals.
        if std::fs::metadata(self.config).is_ok_and(|file| !file.is_file()) {
            return Err(format!(
                "the configuration {} is not a regular file, so the server cannot read that configuration again",
                self.config
            ));
        }
        // An error is ignored here, because the attempt to load the configuration below reports it.
        let _ = h2o_opener::learn(self.config);
        h2o_server::reload(self.config, self.source, &self.loaded)
            .map_err(|error| error.to_string())
    }

    /// Returns a warning for each listener that only one of the running configuration and `next` has, if a supervisor has started this
    /// process: the supervisor goes on to pass the sockets that it was started with, so its next worker would end with an error.
    fn warn_of_supervisor(&self, next: &LoadedConfig) -> Vec<String> {
        if !self.is_supervised {
            return Vec::new();
        }
        let changed = self.loaded.listeners_of_one_only(next);
        let warn = |label: String| {
            format!(
                "[warning] `listen` {label}: the supervisor was started with other addresses; restart it before you send it HUP, or its \
                 new workers end with an error"
            )
        };
        changed.into_iter().map(warn).collect()
    }

    /// Reads the configuration again and has the server use it from now on. Returns warnings.
    fn serve_next(&mut self) -> Result<Vec<String>, String> {
        let next = self.next_configuration()?;
        let settings = next.settings();
        let text = |failure: Failure| failure.text().to_owned();
        privileges::check_descriptor_limit(&settings).map_err(text)?;
        check::check_temp_buffer_path(&settings).map_err(text)?;
        let mut warnings = next.warnings.clone();
        warnings.extend(self.warn_of_supervisor(&next));
        warnings.extend(next.inspect_certificates());
        warnings.extend(check::inspect_as_running_user(&next, None, true));
        warnings.extend(self.server.reload(&next)?);
        self.loaded = next;
        Ok(warnings)
    }
}

impl Control for RunningServer<'_> {
    fn announce_end(&self) {
        self.server.announce_end();
    }

    fn shutdown_times(&self) -> ShutdownTimes {
        let settings = self.loaded.settings();
        ShutdownTimes {
            delay: settings.shutdown_delay,
            limit: settings.shutdown_timeout,
        }
    }

    fn shut_down(&self) {
        systemd::notify(State::Stopping);
        self.server.shut_down();
    }

    fn close_connections(&self) {
        systemd::notify(State::Stopping);
        self.server.close_connections();
    }

    fn reload(&mut self) {
        systemd::notify(State::Reloading);
        self.answer(Question::Reload);
        systemd::notify(State::Ready);
    }

    /// Answers the question of a client of the control socket. The result of a reload is also written to the error log.
    fn answer(&mut self, question: Question) -> Reply {
        let done = match question {
            Question::Reload => self.reload_configuration(),
            Question::Differences => self.next_configuration().map(|next| Answer {
                lines: [
                    self.loaded.differences(&next),
                    self.warn_of_supervisor(&next),
                ]
                .concat(),
                ..Answer::default()
            }),
            Question::Status => {
                let report = self.server.begin_status();
                return Reply::Later(Box::new(move || match report.wait() {
                    Some(report) => Answer {
                        lines: vec![String::from_utf8_lossy(&report).into_owned()],
                        ..Answer::default()
                    },
                    None => Answer::busy("the workers do not answer"),
                }));
            }
        };
        Reply::Now(done.unwrap_or_else(|text| {
            if question == Question::Reload {
                report!(
                    error,
                    "{text}; the configuration was not reloaded, the one in use stays"
                );
            }
            Answer::refused(&text)
        }))
    }

    fn tick(&mut self) {
        match h2o_keys::revive() {
            None => {}
            Some(Revival::Revived(lost)) => {
                report!(
                    error,
                    "the key process had ended or did not answer; it was started again"
                );
                for text in lost {
                    report!(error, "{text}; handshakes with this key fail");
                }
            }
            Some(Revival::Failed(reason)) => {
                report!(
                    error,
                    "the key process cannot be started again: {reason}; TLS handshakes fail"
                );
            }
        }
        self.server.release_retired();
        self.server.update_staples();
        let Some(reloaded) = self.server.reload_changed_certificates() else {
            return;
        };
        for failure in &reloaded.failures {
            report!(
                warning,
                "{failure}; the certificates loaded before stay in use"
            );
        }
        if reloaded.renewed > 0 {
            report!(
                notice,
                "certificates changed on disk; certificates reloaded: {}",
                reloaded.renewed
            );
        }
    }

    fn reopen(&self, signal: &str) {
        // This message becomes the last line of the old log file.
        report!(
            notice,
            "received {signal}, reopening logs and reloading changed certificates"
        );
        // The error log comes first, since it can be the standard output to which an access log goes.
        let mut failures: Vec<String> = self.error_log.reopen().err().into_iter().collect();
        failures.extend(self.loaded.reopen_resources());
        for failure in &failures {
            report!(
                error,
                "{failure}; the lines of this log still go to the file that was open before"
            );
        }
        let certificates = self.server.reload_certificates();
        for failure in &certificates.failures {
            report!(
                error,
                "{failure}; the certificates loaded before stay in use"
            );
        }
        report!(
            notice,
            "reopened logs{}; certificates reloaded: {}",
            if failures.is_empty() {
                ""
            } else {
                ", except those that failed"
            },
            certificates.renewed
        );
    }
}
