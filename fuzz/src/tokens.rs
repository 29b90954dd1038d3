//! Any bytes as a file of tokens. They may be refused; what is taken is what the lines say, and no error shows a token.

use sluice_roles::{Role, TokenList};

/// Characters of a token, at least.
const TOKEN_CHARS_MIN: usize = 16;

/// Everything that is done with such bytes.
pub fn tokens(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(str::trim);
    let written = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let list = match TokenList::parse(bytes) {
        Ok(list) => list,
        Err(error) => {
            let mut words = written.flat_map(str::split_whitespace);
            let shown = words.find(|word| word.len() >= TOKEN_CHARS_MIN && error.contains(word));
            assert_eq!(shown, None, "{error}");
            return;
        }
    };
    let mut count = 0;
    for line in written {
        let (role, token) = line.split_once(char::is_whitespace).expect("it was taken");
        let token = token.trim();
        assert_eq!(list.position(token), Some(count));
        assert_eq!(role.parse::<Role>().ok(), Some(list.tokens()[count].role));
        assert_eq!(
            list.position(&token[1..]).filter(|other| *other == count),
            None
        );
        count += 1;
    }
    assert_eq!(list.tokens().len(), count);
}
