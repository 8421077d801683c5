//! The user and the password for a connection: those of the URL, or those that the user's function gives.

use std::io;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use redis::{RedisError, RedisResult};

use super::Endpoint;
use crate::config::credentials::{Ask, Credentials};
use crate::config::server::Login;
use crate::error::lasting;
use crate::net::request::Request;
use crate::report::report;

impl Endpoint {
    fn credentials(&self) -> Option<&Credentials> {
        self.server.login.asked.as_ref()
    }

    /// How to log in now. Calls the user's function if there is one, and so may take as long as the function does.
    pub(crate) fn login(&self) -> RedisResult<Login> {
        match self.credentials() {
            Some(credentials) => ask(&*credentials.ask),
            None => Ok(self.server.login.clone()),
        }
    }

    /// When a connection that logged in at this moment has to be replaced by one with a new login, if ever.
    pub(crate) fn replace_at(&self, logged_in: Instant) -> Option<Instant> {
        self.credentials()?.again_at(logged_in)
    }

    /// Logs that a connection keeps its old login, since no successor could be made.
    pub(crate) fn log_login_kept(&self, role: &str, why: &RedisError) {
        report!(
            Warn,
            "renewing the login at redis, {self}, failed ({role}): {why}; the old connection stays in use"
        );
    }

    /// How often to check the age of logins, and how long to wait after a failed renewal.
    pub(crate) fn log_in_period(&self) -> Option<Duration> {
        self.credentials()?.period()
    }
}

/// Calls the user's function.
fn ask(function: &Ask) -> RedisResult<Login> {
    match std::panic::catch_unwind(AssertUnwindSafe(function)) {
        Ok(Ok((username, password))) => Ok(Login {
            username: Some(username).filter(|username| !username.is_empty()),
            password: Some(password),
            asked: None,
        }),
        Ok(Err(err)) => Err(RedisError::from(io::Error::other(format!(
            "the function given to Config::credentials has failed: {err}"
        )))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(lasting(format!(
                "the function given to Config::credentials has panicked: {}",
                text.unwrap_or("no text")
            )))
        }
    }
}

impl Login {
    /// The command that logs in, if there is a password.
    pub(crate) fn auth(&self) -> Option<Request> {
        let password = self.password.as_deref()?;
        let mut parts = vec!["AUTH"];
        parts.extend(self.username.as_deref());
        parts.push(password);
        Some(Request::command("logging in", &parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::is_transient;

    #[test]
    fn an_error_may_pass_and_a_panic_does_not() {
        let failed = ask(&|| Err("no token today".into())).expect_err("an error");
        assert!(is_transient(&failed) && failed.to_string().contains("no token today"));
        let panicked = ask(&|| panic!("at {}", "once")).expect_err("a panic");
        assert!(!is_transient(&panicked) && panicked.to_string().contains("at once"));
        let login = ask(&|| Ok((String::new(), "p".into()))).expect("a login");
        assert_eq!(
            (login.username, login.password.as_deref()),
            (None, Some("p"))
        );
    }
}
