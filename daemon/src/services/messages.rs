//! Bytes of messages, counted from the first to the end of the call, or of the request that waits with them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    caller::{Caller, User},
    failure::Failure,
    limits::{
        ADMIN_MESSAGES_BYTES, MESSAGES_BYTES_MAX, SMALL_MESSAGE_BYTES, USER_MESSAGES_BYTES_MAX,
        USER_WAITING_BYTES_MAX, WAITING_BYTES_MAX,
    },
    role::Role,
};

/// Keeps a call's message counted, for a request that waits with it after the call was answered.
#[derive(Debug, Clone)]
pub(super) struct HeldMessage(pub(super) Arc<Share>);

impl HeldMessage {
    /// Counts it among those that wait.
    ///
    /// # Errors
    /// When there is no room for it.
    pub(super) fn wait_in_line(&self) -> Result<(), Failure> {
        self.0.wait(true)
    }

    /// Counts it among those that wait, whose number the engine's queue bounds.
    pub(super) fn admitted(&self) {
        // Without a check it cannot be refused.
        let _ = self.0.wait(false);
    }
}

/// Bytes of messages: of those on their way in or being prepared, and of those that wait with their requests. Apart, so that
/// requests that wait for long leave room for messages.
#[derive(Debug, Default)]
pub(super) struct MessageAccount(Mutex<Account>);

#[derive(Debug, Default)]
struct Account {
    coming: CountedBytes,
    waiting: CountedBytes,
}

/// Bytes of all users and of each.
#[derive(Debug, Default)]
pub(super) struct CountedBytes {
    all: usize,
    of_user: HashMap<User, usize>,
}

impl CountedBytes {
    /// Whether a user may have so many more, within these for all and for a user.
    pub(super) fn has_room(
        &self,
        user: User,
        bytes: usize,
        all_max: usize,
        user_max: usize,
    ) -> bool {
        let of_user = self.of_user.get(&user).copied().unwrap_or(0);
        self.all + bytes <= all_max && of_user + bytes <= user_max
    }

    /// The same of messages, of which administrators have more.
    fn has_room_for_message(
        &self,
        caller: Caller,
        bytes: usize,
        all_max: usize,
        user_max: usize,
    ) -> bool {
        let (all_max, user_max) = match caller.may(Role::Admin) {
            true => (all_max + ADMIN_MESSAGES_BYTES, usize::MAX),
            false => (all_max, user_max),
        };
        self.has_room(caller.user, bytes, all_max, user_max)
    }

    pub(super) fn add(&mut self, user: User, bytes: usize) {
        self.all += bytes;
        if bytes > 0 {
            *self.of_user.entry(user).or_default() += bytes;
        }
    }

    pub(super) fn remove(&mut self, user: User, bytes: usize) {
        self.all -= bytes;
        if let Some(of_user) = self.of_user.get_mut(&user) {
            *of_user -= bytes;
            if *of_user == 0 {
                self.of_user.remove(&user);
            }
        }
    }
}

impl MessageAccount {
    fn lock(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one call's message holds of the account.
#[derive(Debug)]
pub(super) struct Share {
    account: Arc<MessageAccount>,
    caller: Caller,
    held: Mutex<HeldBytes>,
}

#[derive(Debug, Default)]
struct HeldBytes {
    bytes: usize,
    waits: bool,
}

impl Share {
    /// A call that holds nothing yet.
    pub(super) fn new(account: Arc<MessageAccount>, caller: Caller) -> Self {
        Self {
            account,
            caller,
            held: Mutex::default(),
        }
    }

    /// So many bytes have come: holds them, unless they are few.
    pub(super) fn came(&self, bytes: usize) -> Result<(), Failure> {
        self.hold(match bytes > SMALL_MESSAGE_BYTES {
            true => bytes,
            false => 0,
        })
    }

    /// Holds so many bytes from now on: takes what is missing, or gives back what is too much.
    fn hold(&self, bytes: usize) -> Result<(), Failure> {
        if self.held().bytes == bytes {
            return Ok(());
        }
        let mut account = self.account.lock();
        let mut held = self.held();
        let (all, of_user) = (MESSAGES_BYTES_MAX, USER_MESSAGES_BYTES_MAX);
        // What waits is whole.
        if held.waits {
            return Ok(());
        }
        let more = bytes.saturating_sub(held.bytes);
        let coming = &account.coming;
        if more > 0 && !coming.has_room_for_message(self.caller, more, all, of_user) {
            return Err(Failure::MessagesFull);
        }
        account.coming.remove(self.caller.user, held.bytes);
        account.coming.add(self.caller.user, bytes);
        held.bytes = bytes;
        Ok(())
    }

    /// Counts its bytes among those that wait from now on.
    fn wait(&self, is_checked: bool) -> Result<(), Failure> {
        let mut account = self.account.lock();
        let mut held = self.held();
        let (all, of_user) = (WAITING_BYTES_MAX, USER_WAITING_BYTES_MAX);
        if held.waits || held.bytes == 0 {
            return Ok(());
        }
        let has_room = account
            .waiting
            .has_room_for_message(self.caller, held.bytes, all, of_user);
        if is_checked && !has_room {
            return Err(Failure::MessagesFull);
        }
        account.coming.remove(self.caller.user, held.bytes);
        account.waiting.add(self.caller.user, held.bytes);
        held.waits = true;
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, HeldBytes> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut account = self.account.lock();
        let held = self.held();
        let bytes = match held.waits {
            true => &mut account.waiting,
            false => &mut account.coming,
        };
        bytes.remove(self.caller.user, held.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn share(account: &Arc<MessageAccount>, uid: u32, role: Role) -> Arc<Share> {
        let caller = Caller {
            user: User::Unix { uid },
            role: Some(role),
            ..Caller::DAEMON
        };
        Arc::new(Share::new(account.clone(), caller))
    }

    #[test]
    fn users_are_bounded_and_administrators_have_room() {
        let account = Arc::new(MessageAccount::default());
        let of = |uid| share(&account, uid, Role::Generate);
        let (one, other) = (of(1), of(2));
        one.hold(USER_MESSAGES_BYTES_MAX).unwrap();
        assert!(one.hold(USER_MESSAGES_BYTES_MAX + 1).is_err());
        let rest = MESSAGES_BYTES_MAX - USER_MESSAGES_BYTES_MAX;
        other.hold(rest).unwrap();
        assert!(other.hold(rest + 1).is_err() && of(3).hold(1).is_err());
        let admin = share(&account, 0, Role::Admin);
        admin.hold(ADMIN_MESSAGES_BYTES).unwrap();
        one.hold(1).unwrap();
        other.hold(rest + 1).unwrap();
        drop((one, other, admin));
        let empty = account.lock();
        assert!(empty.coming.all == 0 && empty.coming.of_user.is_empty());
    }

    #[test]
    fn what_waits_leaves_room_for_what_comes() {
        let account = Arc::new(MessageAccount::default());
        let mut waiting = Vec::new();
        let refused = loop {
            let share = share(&account, 1, Role::Generate);
            share.hold(4 * MIB).unwrap();
            let held = HeldMessage(share);
            match held.wait_in_line() {
                Ok(()) => waiting.push(held),
                Err(_) => break held,
            }
        };
        assert_eq!(waiting.len(), USER_WAITING_BYTES_MAX / (4 * MIB));
        // The engine's queue bounds those that it takes.
        refused.admitted();
        assert_eq!(account.lock().coming.all, 0);
        drop((waiting, refused));
        assert_eq!(account.lock().waiting.all, 0);
    }
}
