//! The text of every script, by its file in `lua/`. Tests and benches that run scripts directly share this file.
//!
//! `lua/prelude/` has code with which scripts begin, most of it shared by several scripts. This file puts it in front of
//! each script that is listed with it. Scripts are sent by hash, so their length matters only when a server does not know
//! them yet.

/// Passes all scripts to a macro.
macro_rules! scripts {
    ($then:ident) => {
        $then! {
        LOCK_ACQUIRE = "lock_acquire" after "lock";
        LOCK_RELEASE = "lock_release";
        LOCK_RENEW = "lock_renew";
        LOCK_KEEP = "lock_keep";
        LOCK_FORCE = "lock_force" after "lock";
        LOCK_STATE = "lock_state" after "lock";
        LOCK_ADOPT = "lock_adopt" after "lock" "tokens";
        FAIR_ACQUIRE = "fair_acquire" after "lock" "fair";
        FAIR_RELEASE = "fair_release" after "fair";
        FAIR_REFRESH = "fair_refresh" after "fair";
        FAIR_FORCE = "fair_force" after "lock" "fair";
        FENCED_ACQUIRE = "fenced_acquire" after "lock" "tokens";
        FENCED_HOLDER = "fenced_holder" after "lock";
        RW_READ_ACQUIRE = "rw_read_acquire" after "lock" "notes";
        RW_READ_RELEASE = "rw_read_release" after "readers" "lock";
        RW_READ_RENEW = "rw_read_renew";
        RW_WRITE_ACQUIRE = "rw_write_acquire" after "lock" "notes";
        RW_WRITE_RELEASE = "rw_write_release";
        RW_FORCE = "rw_force" after "lock";
        RW_STATE = "rw_state" after "lock";
        RED_ACQUIRE = "red_acquire" after "lock";
        GUARDED_CALL = "guarded_call" after "guarded";
        INSPECT = "inspect" after "lock";
        SUMMARY = "summary" after "lock";
        LATCH_STATE = "latch_state";
        LATCH_SET = "latch_set";
        LATCH_COUNT_DOWN = "latch_count_down";
        LATCH_DELETE = "latch_delete";
        SEMAPHORE_ACQUIRE = "semaphore_acquire";
        SEMAPHORE_RELEASE = "semaphore_release";
        SEMAPHORE_UNDO = "semaphore_undo";
        SEMAPHORE_SET = "semaphore_set";
        SEMAPHORE_DRAIN = "semaphore_drain";
        SEMAPHORE_DELETE = "semaphore_delete";
        PERMIT_ACQUIRE = "permit_acquire" after "permits";
        PERMIT_RELEASE = "permit_release" after "permits";
        PERMIT_RELEASE_IDS = "permit_release_ids" after "permits";
        PERMIT_RENEW = "permit_renew";
        PERMIT_ADOPT = "permit_adopt" after "permits";
        PERMIT_UPDATE = "permit_update" after "permits";
        PERMIT_LEASE = "permit_lease" after "permits";
        PERMIT_STATE = "permit_state" after "permits";
        PERMIT_TRY_SET = "permit_try_set" after "permits";
        PERMIT_SET = "permit_set" after "permits";
        PERMIT_ADD = "permit_add" after "permits";
        PERMIT_DELETE = "permit_delete" after "permits";
        }
    };
}

macro_rules! texts {
    ($($name:ident = $file:literal $(after $($prelude:literal)+)?;)+) => {
        $(pub(crate) const $name: &str = concat!(
            $($(include_str!(concat!("../../lua/prelude/", $prelude, ".lua")),)+)?
            include_str!(concat!("../../lua/", $file, ".lua")),
        );)+

        /// The check in front of a user's script.
        pub(crate) const GUARDED: &str = include_str!("../../lua/prelude/guarded.lua");

        /// Every script, by its file.
        pub(crate) const ALL: &[(&str, &str)] = &[$(($file, $name)),+];
    };
}

scripts!(texts);
