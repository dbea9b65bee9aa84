//! What the init knows of a job: templates parsed, environment made, pace measured.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::rc::Rc;

use tidemill_sys::spawn::{ShellLimits, SoftLimit, Strings};
use tidemill_sys::Result;
use tidemill_wire::{ApprovedFile, JobDef, Program};

use super::inputs::{directory_of, each_files, path_of, Inputs};
use super::place::SlotPlace;
use crate::line::LineRules;
use crate::queue::{Events, Pace};
use crate::template::{Template, Values, ARGUMENTS_BYTES_MAX};
use crate::{Isolated, SlotSpec};

const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";
/// Characters that stand for the bytes 0x80 to 0xff.
const OCTETS: std::ops::RangeInclusive<char> = '\u{10ff80}'..='\u{10ffff}';

/// A job, ready to be started.
pub(crate) struct Job {
    pub def: JobDef,
    pub program: Rc<Program>,
    pub path: CString,
    /// files that are compared before every start
    pub files: Vec<ApprovedFile>,
    executable: String,
    pub pace: Pace,
    pub inputs: Inputs,
    /// words before the executable: a container's runtime with its options
    wrap: Vec<String>,
    argv: Vec<Template>,
    /// what lines must be to become arguments; None = anything
    lines: Option<LineRules>,
    outputs: Vec<(String, Template)>,
    env: Strings,
    env_shared: usize,
    /// what the submitter's shell sets for its payloads
    pub limits: ShellLimits,
    /// no more work will come
    pub forgotten: bool,
    /// payloads whose work directory was searched for files that no output names
    pub looks: u32,
}

impl Job {
    /// The error says what is wrong with the job.
    pub fn new(
        def: JobDef,
        program: Rc<Program>,
        spec: &SlotSpec,
        place: &SlotPlace,
    ) -> std::result::Result<Job, String> {
        let wrap: Vec<String> = program.wrap.iter().map(|word| placed(word, place)).collect();
        let started = wrap.first().unwrap_or(&program.executable);
        if let Some(wrong) = [started, &program.executable]
            .into_iter()
            .find(|path| !path.starts_with('/'))
        {
            return Err(format!("executable `{wrong}` is not an absolute path"));
        }
        let moved = |text: &str| relocated(text, spec, place);
        let (started, executable) = (moved(started), moved(&program.executable));
        let path = CString::new(octets(&started)).map_err(|error| error.to_string())?;
        let files = program.files.iter().filter(|file| moved(&file.path) == file.path);
        let files = files.cloned().collect();
        let argv = def
            .argv
            .iter()
            .map(|text| Template::parse(&moved(text)))
            .collect::<std::result::Result<_, _>>()?;
        let lines = program.lines.as_ref().map(LineRules::new).transpose()?;
        let mut outputs = Vec::new();
        for output in &program.outputs {
            outputs.push((output.name.clone(), Template::parse(&output.path)?));
        }
        let mut env = Strings::new();
        for (name, value) in environment(&def, &program, spec, place) {
            env.push(octets(&format!("{name}={}", moved(&value))))
                .map_err(|error| format!("environment `{name}`: {error}"))?;
        }
        Ok(Job {
            pace: Pace::new(program.event_s),
            inputs: Inputs::default(),
            env_shared: env.len(),
            limits: shell_limits(&def),
            forgotten: false,
            looks: 0,
            def,
            program,
            path,
            files,
            wrap,
            executable,
            argv,
            lines,
            outputs,
            env,
        })
    }

    /// 1 + seed_base + event, as in `model/seed.py`.
    pub fn seed(&self, event: u64) -> u64 {
        1 + self.def.seed_base + event
    }

    pub fn persistent(&self) -> bool {
        self.program.mode == "range"
    }

    /// Arguments for these events, `argv[0]` first; for a persistent payload, of no event in particular.
    pub fn arguments(&self, place: &SlotPlace, events: Events) -> std::result::Result<Strings, String> {
        let mut argv = Strings::new();
        for word in self.wrap.iter().chain(std::iter::once(&self.executable)) {
            argv.push(octets(word)).map_err(|error| error.to_string())?;
        }
        let mut filled_bytes = 0;
        for template in &self.argv {
            match template.literal() {
                Some(text) => argv.push(octets(text)),
                None => {
                    let text = self.fill(template, (place, self.lines.as_ref()), events)?;
                    filled_bytes += text.len();
                    argv.push(octets(&text))
                }
            }
            .map_err(|error| format!("argument {}: {error}", argv.len()))?;
            if filled_bytes > ARGUMENTS_BYTES_MAX {
                return Err(format!(
                    "filled in its arguments have more than {ARGUMENTS_BYTES_MAX} bytes, which no program can be given"
                ));
            }
        }
        Ok(argv)
    }

    /// Names and paths of the outputs that these events must leave in the work directory.
    pub fn outputs(
        &self,
        place: &SlotPlace,
        events: Events,
    ) -> std::result::Result<Vec<(String, String)>, String> {
        let filled = self.outputs.iter().map(|(name, template)| {
            let path = self.fill(template, (place, None), events)?; // no program is started with it
            Ok((name.clone(), path))
        });
        filled.collect()
    }

    fn fill(
        &self,
        template: &Template,
        (place, rules): (&SlotPlace, Option<&LineRules>),
        events: Events,
    ) -> std::result::Result<String, String> {
        let event = (!self.persistent() && events.count == 1).then_some(events.first);
        let line = self.inputs.line(events.first);
        template.fill(&Values {
            first: events.first,
            count: events.count,
            seed: self.seed(events.first),
            line: line.as_ref().map(|(line, _)| &**line),
            written: line.as_ref().map(|(_, written)| *written),
            rules,
            cores: self.program.cores,
            input: &|name| self.place_of(place, name, event),
        })
    }

    /// The URL or path of an input.
    fn place_of(&self, place: &SlotPlace, name: &str, event: Option<u64>) -> Option<String> {
        let url = self.inputs.url_of(&self.def, name, event);
        url.or_else(|| path_of(place, &self.def, name, event))
    }

    pub fn env(&self) -> &Strings {
        &self.env
    }

    /// Makes the environment; in command mode with what these events add.
    pub fn set_environment(&mut self, place: &SlotPlace, events: Option<Events>) -> Result<()> {
        self.env.truncate(self.env_shared);
        for input in self.def.inputs.iter().filter(|input| input.kind == "url") {
            if let Some(found) = self.place_of(place, &input.name, None) {
                self.env
                    .push(format!("{}={found}", input_variable(&input.name)))?;
            }
        }
        if let Some(events) = events {
            self.env.push(format!("TIDEMILL_FIRST={}", events.first))?;
            self.env.push(format!("TIDEMILL_COUNT={}", events.count))?;
            self.env
                .push(format!("TIDEMILL_SEED={}", self.seed(events.first)))?;
            let event = (events.count == 1).then_some(events.first);
            for input in each_files(&self.def) {
                if let Some(path) = self.place_of(place, &input.name, event) {
                    self.env.push(format!("{}={path}", input_variable(&input.name)))?;
                }
            }
        }
        Ok(())
    }

    /// Names that the work directory shows, with what they lead to. An approved program's shows none: interpreters look
    /// for code there, and it is the submitter who names inputs.
    pub fn links(&self, place: &SlotPlace, events: Events) -> Vec<(String, String)> {
        if self.program.inputs_apart == Some(true) {
            return Vec::new();
        }
        let event = (!self.persistent() && events.count == 1).then_some(events.first);
        let link = |input: &tidemill_wire::InputDef| {
            if self.inputs.url_of(&self.def, &input.name, event).is_some() {
                return None; // there is no file
            }
            Some((input.name.clone(), path_of(place, &self.def, &input.name, event)?))
        };
        self.def.inputs.iter().filter_map(link).collect()
    }
}

/// The bytes of a text, with each character of `OCTETS` as the one byte that it represents (`tidemill/octets.py`).
fn octets(text: &str) -> Vec<u8> {
    if !text.chars().any(|letter| OCTETS.contains(&letter)) {
        return text.as_bytes().to_vec();
    }
    let mut bytes = Vec::with_capacity(text.len());
    for letter in text.chars() {
        if OCTETS.contains(&letter) {
            bytes.push((u32::from(letter) & 0xff) as u8);
        } else {
            bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    bytes
}

/// Umask and soft limits of the job's definition. Skips names that this version does not know.
fn shell_limits(def: &JobDef) -> ShellLimits {
    let limits = def.limits.iter().flatten();
    ShellLimits {
        umask: def.umask.and_then(|umask| u32::try_from(umask).ok()),
        soft: limits
            .filter_map(|(name, &value)| SoftLimit::named(name, value))
            .collect(),
    }
}

/// A word of `wrap` with the slot's directories in it, as payloads see them.
fn placed(word: &str, place: &SlotPlace) -> String {
    let work = format!("{}/work", place.tmp_path);
    [
        ("{work}", work.as_str()),
        ("{tmp}", &place.tmp_path),
        ("{home}", &place.home_path),
        ("{own}", &place.own_path),
    ]
    .into_iter()
    .fold(word.to_owned(), |text, (name, path)| text.replace(name, path))
}

/// A text as payloads get it: where images are not at their original paths, it names the paths where they are.
fn relocated(text: &str, spec: &SlotSpec, place: &SlotPlace) -> String {
    if place.isolated == Isolated::Namespaces {
        return text.to_owned();
    }
    spec.images.iter().fold(text.to_owned(), |text, image| {
        tidemill_image::relocate(&image.root.to_string_lossy(), &image.areas, &text)
    })
}

/// `TIDEMILL_INPUT_` and the name in upper case, `_` for everything that no variable name may hold.
fn input_variable(name: &str) -> String {
    let letter = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    format!("TIDEMILL_INPUT_{}", name.chars().map(letter).collect::<String>())
}

/// Whether a variable of the pilot's environment is the payload's too: its name, or `NAME*` that it starts with.
fn passes(name: &str, wanted: &[String]) -> bool {
    wanted.iter().any(|each| match each.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == each,
    })
}

/// Everything that does not depend on the events. What application and job set themselves is theirs, except TIDEMILL_*.
fn environment(
    def: &JobDef,
    program: &Program,
    spec: &SlotSpec,
    place: &SlotPlace,
) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    env.insert("PATH".to_owned(), PATH_DEFAULT.to_owned());
    env.insert("HOME".to_owned(), place.home_path.clone());
    let tmp = match spec.directory {
        Some(_) => std::env::var("TMPDIR").unwrap_or_else(|_| "/tmp".to_owned()), // of each node
        None => place.tmp_path.clone(),
    };
    env.insert("TMPDIR".to_owned(), tmp);
    let ours = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let passed = ours.filter(|(name, _)| passes(name, &program.pass_env));
    env.extend(passed.filter(|(name, _)| !spec.chooses_devices(name)));
    let devices = spec.device_variables(place.devices_hidden);
    env.extend(devices.into_iter().map(|(name, value)| (name.to_owned(), value)));
    env.extend(program.env.clone());
    env.extend(def.env.clone());
    let library = format!("{}/lib", place.own_path);
    let given = env.get("PYTHONPATH").filter(|path| !path.is_empty()).cloned();
    let python: Vec<String> = [program.python_first.clone(), given, Some(library)]
        .into_iter()
        .flatten()
        .collect();
    env.insert("PYTHONPATH".to_owned(), python.join(":"));
    let mut ours = vec![
        ("TIDEMILL_JOB", tidemill_wire::job_of(def.job).to_string()),
        ("TIDEMILL_CORES", program.cores.to_string()),
        ("TIDEMILL_SLOT", spec.index.to_string()),
        ("TIDEMILL_PARAMS", def.params.clone()),
    ];
    if !spec.node.is_empty() {
        ours.push(("TIDEMILL_NODE", spec.node.clone()));
    }
    if program.mode == "range" {
        ours.push(("TIDEMILL_IN", "3".to_owned()));
        ours.push(("TIDEMILL_OUT", "4".to_owned()));
    }
    if !def.inputs.is_empty() {
        ours.push(("TIDEMILL_INPUTS", directory_of(place, def)));
    }
    env.extend(ours.into_iter().map(|(name, value)| (name.to_owned(), value)));
    for input in def.inputs.iter().filter(|input| input.kind != "url") {
        let is_each = matches!(input.kind.as_str(), "each" | "urls");
        let per_event = program.mode == "command" && is_each && input.path.is_some();
        if let Some(path) = path_of(place, def, &input.name, None).filter(|_| !per_event) {
            env.insert(input_variable(&input.name), path);
        }
    }
    env
}

#[cfg(test)]
mod tests {
    use super::octets;

    #[test]
    fn characters_that_stand_for_bytes_become_those_and_all_others_stay() {
        assert_eq!(octets("caf\u{10ffe9}"), b"caf\xe9");
        assert_eq!(octets("\u{10ff80}\u{10ffff}"), b"\x80\xff");
        for same in ["", "plain", "é日本\u{10ff7f}\u{10fe80}"] {
            assert_eq!(octets(same), same.as_bytes());
        }
    }
}
