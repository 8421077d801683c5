#![doc = include_str!("tour.md")]

/// A recipe, as code: the tests and the example run the same file. A recipe that needs another crate is compiled only there.
macro_rules! recipe {
    ($name:literal) => {
        recipe!($name, "rust,no_run")
    };
    ($name:literal, $how:literal) => {
        concat!(
            "\n```",
            $how,
            "\n",
            include_str!(concat!("../../examples/recipes/", $name, ".rs")),
            "```\n"
        )
    };
}

#[doc = include_str!("should_i_use_this.md")]
#[doc = recipe!("from_set_nx")]
pub mod should_i_use_this {}

// Written by `tests/peers/table`.
#[doc = include_str!("plots/faults.md")]
pub mod faults {}

#[doc = include_str!("common_mistakes.md")]
pub mod common_mistakes {}

#[doc = include_str!("with_redisson.md")]
pub mod with_redisson {}

#[doc = include_str!("deployments.md")]
pub mod deployments {}

#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("recipes.md")]
#[doc = "# Once a minute, on one host"]
#[doc = recipe!("cron")]
#[doc = "# Migrations when a service starts"]
#[doc = recipe!("migrations")]
#[doc = "# One leader of several processes"]
#[doc = recipe!("leader")]
#[doc = "# A hold that changes hands"]
#[doc = recipe!("hand_over")]
#[doc = "# At most so many at once, over all hosts"]
#[doc = recipe!("pool")]
#[doc = "# A cache that is filled once"]
#[doc = recipe!("stampede")]
#[doc = "# A database that rejects late writers"]
#[doc = recipe!("sql", "rust,ignore")]
#[doc = "# A web handler that does not wait"]
#[doc = recipe!("web")]
#[doc = "# A readiness probe"]
#[doc = recipe!("health")]
#[doc = "# Ending on SIGTERM"]
#[doc = recipe!("shutdown")]
#[doc = "# From async programs"]
#[doc = recipe!("from_async", "rust,ignore")]
#[doc = "# Tests without Redis"]
#[doc = recipe!("without_redis")]
pub mod recipes {}

// For contributors, from here on.

#[doc = include_str!("architecture.md")]
pub mod architecture {}

// The images of the page below; they take precedence over the files that it names.
#[doc = include_str!("plots/inlined.md")]
#[doc = include_str!("performance.md")]
pub mod performance {}

#[doc = include_str!("testing.md")]
pub mod testing {}
