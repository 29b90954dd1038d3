//! The manual page of the configuration file, from the table of settings.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::{row::SettingRow, table::ROWS};

/// sluiced.toml(5), as roff.
#[must_use]
pub fn manual() -> String {
    let mut page = Roff::new();
    page.control(
        "TH",
        [
            "sluiced.toml",
            "5",
            "",
            &format!("sluiced {}", env!("CARGO_PKG_VERSION")),
        ],
    );
    let section = |page: &mut Roff, name: &str, text: Vec<Inline>| {
        page.control("SH", [name]);
        page.text(text);
    };
    section(
        &mut page,
        "NAME",
        vec![roman(
            "sluiced.toml - configuration of sluiced, the language model daemon",
        )],
    );
    section(
        &mut page,
        "DESCRIPTION",
        vec![
            roman("A TOML file of keys and values, all of which may be left out. Flags of "),
            bold("sluiced"),
            roman(
                "(1) go before variables of the environment, those before this file, and all before what is built in. ",
            ),
            bold("sluiced --print-config"),
            roman(" shows what holds and where it comes from, and "),
            bold("sluiced --check-config"),
            roman(
                " checks it. Relative paths begin at the file's folder. What holds for single models stands in ",
            ),
            italic("models.toml"),
            roman(" beside it."),
        ],
    );
    page.control("SH", ["KEYS"]);
    for row in ROWS.iter() {
        describe(&mut page, row);
    }
    section(
        &mut page,
        "FILES",
        vec![
            italic("$XDG_CONFIG_HOME/sluice/sluiced.toml"),
            roman(" (else "),
            italic("~/.config/sluice/sluiced.toml"),
            roman("), else "),
            italic("/etc/sluice/sluiced.toml"),
            roman(": the first that is there is read. "),
            bold("--config"),
            roman(" and "),
            bold("$SLUICE_CONFIG"),
            roman(" name another."),
        ],
    );
    section(
        &mut page,
        "SEE ALSO",
        vec![
            bold("sluiced"),
            roman("(1), "),
            bold("sluice"),
            roman("(1)"),
        ],
    );
    page.to_roff()
}

fn describe(page: &mut Roff, row: &SettingRow) {
    page.control("TP", []);
    page.text([bold(row.key), roman(" = "), italic(row.value_name)]);
    for (number, paragraph) in row.paragraphs().enumerate() {
        if number > 0 {
            // A paragraph of the same entry.
            page.control("IP", []);
        }
        let end = if paragraph.ends_with('.') { "" } else { "." };
        page.text([roman(format!("{paragraph}{end}"))]);
    }
    page.control("IP", []);
    page.text([
        roman(format!("Default: {}. Also as ", row.default)),
        bold(row.flag),
        roman(" and "),
        bold(format!("${}", row.variable)),
        roman("."),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_entry() {
        let page = manual();
        for row in ROWS.iter() {
            let entry = format!(".TP\n\\fB{}\\fR = ", row.key.replace('-', "\\-"));
            assert!(page.contains(&entry), "{entry}: {page}");
        }
    }
}
